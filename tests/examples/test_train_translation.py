"""examples/train_translation.py and compare_translation.py on a toy language, which translates
letters into capitals in reverse."""

import csv
import dataclasses
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from exhaustive import beyond

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import compare_translation
import train_translation
from translation import comparison, corpus, decoding, libreoffice, subwords
from translation.checkpoints import Checkpoints
from translation.model import FUSED_KERNEL, IGNORED, PAD, ModelConfig, build_model, training_loss
from translation.training import StepRecord, Trainer, TrainingConfig, autocast

import fusedops
from fusedops.cli.errors import UserError

ROOT = Path(__file__).parents[2]
VOCABULARY, POSITIONS = 22, 20
SIZES = ModelConfig(VOCABULARY, 16, 2, 2, 32, POSITIONS, dropout=0.1)
TRAINING = TrainingConfig(16, 80, learning_rate=1e-2, warm_up_steps=5)
STEPS = 5  # an epoch


def toy_pairs(count):
    draw = random.Random(0)
    words = [draw.choices("abcdefgh", k=draw.randint(2, 6)) for _ in range(count)]
    return [(" ".join(word), " ".join(reversed(word)).upper()) for word in words]


@pytest.fixture(scope="module")
def toy_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "toy.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in toy_pairs(300)))
    return path


@pytest.fixture(scope="module")
def toy(toy_file):
    """Subwords, and the sequences to train and to validate with."""
    split = corpus.split_by_target(corpus.load_corpus(str(toy_file), (), toy_file.parent).pairs)
    pieces, _ = subwords.load_subwords(split.train, VOCABULARY, toy_file.parent)
    held_out = split.valid + split.test
    return pieces, *(subwords.encode(part, pieces, POSITIONS) for part in (split.train, held_out))


@pytest.fixture
def trainer_of(toy):
    """Makes a trainer with weights from seed 0."""
    train, valid = (subwords.to_tensors(part, POSITIONS) for part in toy[1:])

    def make(mode, dropout=0.1):
        torch.manual_seed(0)
        model = build_model(dataclasses.replace(SIZES, dropout=dropout), mode)
        return Trainer(model, training_loss(model, mode), train, valid, TRAINING)

    return make


def losses_of(trainer, epochs, folder, every=100):
    list(trainer.run(epochs, Checkpoints(folder), every))
    return [record.loss for record in trainer.records]


# --- training -------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_without_dropout_the_modes_have_the_same_losses_and_all_learn(trainer_of, tmp_path):
    # Rounding differs, and Adam's first steps, of the learning rate's size whatever the gradient's,
    # amplify it where a gradient is almost zero: 1e-5 after twenty steps here.
    losses = {
        mode: torch.tensor(losses_of(trainer_of(mode, dropout=0.0), 4, tmp_path / mode))
        for mode in FUSED_KERNEL
    }
    for mode in ("true", "compile"):
        torch.testing.assert_close(losses[mode], losses["false"], rtol=1e-3, atol=0)
        assert not torch.equal(losses[mode], losses["false"])  # other kernels have run
    assert losses["false"][-STEPS:].mean() < 0.8 * losses["false"][0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["false", "true"])
def test_with_dropout_and_in_bfloat16_the_loss_falls(trainer_of, tmp_path, mode):
    trainer = trainer_of(mode)
    trainer.config = dataclasses.replace(TRAINING, dtype="bfloat16")
    losses = losses_of(trainer, 6, tmp_path)
    assert sum(losses[-STEPS:]) < 0.85 * sum(losses[:STEPS])


@pytest.mark.exhaustive
def test_compile_replaces_every_softmax_norm_and_dropout_and_the_cross_entropy(trainer_of):
    trainer = trainer_of("false")
    report = fusedops.explain(trainer.model.loss, trainer.inputs[:16], trainer.labels[:16])
    replaced = sorted(site.op for site in report.sites if site.replaced)
    assert replaced == sorted(
        SIZES.layers * ["masked_softmax_dropout", "add_layer_norm", "add_layer_norm"]
        + ["dropout", "layer_norm", "cross_entropy"]
    )


@pytest.mark.exhaustive
def test_a_run_that_is_killed_after_any_step_resumes_bit_for_bit(trainer_of, tmp_path):
    for mode in ("false", "true"):
        expected = losses_of(trainer_of(mode), 2, tmp_path / mode)
        for killed_after in range(1, 2 * STEPS):
            checkpoints = Checkpoints(tmp_path / f"{mode}-{killed_after}")
            steps = trainer_of(mode).run(2, checkpoints, every=2)
            for _ in range(killed_after):
                next(steps)
            trainer = trainer_of(mode)
            if checkpoints.exist():
                torch.rand(3)  # whatever the new process has drawn before
                trainer.load(checkpoints.load())
            assert killed_after - len(trainer.records) < 2
            assert losses_of(trainer, 2, tmp_path / mode, every=2) == expected


@pytest.mark.exhaustive
def test_a_compiled_run_resumes_bit_for_bit(trainer_of, tmp_path):
    trainer, checkpoints = trainer_of("compile"), Checkpoints(tmp_path)
    expected = losses_of(trainer, 2, tmp_path, every=7)
    os.remove(checkpoints.newest)
    trainer.load(checkpoints.load())  # into the same model: one compilation
    assert len(trainer.records) == 7
    assert losses_of(trainer, 2, tmp_path) == expected


def exact_model(mode):
    """One in float64 with weights from seed 0."""
    torch.manual_seed(0)
    return build_model(SIZES, mode).double().eval()


def test_only_target_tokens_are_scored(toy):
    """Against float64 log-probabilities, token by token, without any padding."""
    sequences = toy[1]
    for mode in ("false", "true"):
        model = exact_model(mode)
        inputs, labels = subwords.to_tensors(sequences, POSITIONS)
        expected = []
        for prompt, target in zip(sequences.prompts[:8], sequences.targets[:8], strict=True):
            log_probs = model(torch.tensor([prompt + target[:-1]]))[0].log_softmax(-1)
            scored = log_probs[len(prompt) - 1 :]
            expected += [-scored[i, token] for i, token in enumerate(target)]
        assert (labels[:8] != IGNORED).sum() == len(expected)
        actual = model.loss(inputs[:8], labels[:8])
        torch.testing.assert_close(actual, torch.stack(expected).mean(), rtol=1e-12, atol=0)


def test_the_fused_model_computes_what_the_plain_one_does():
    tokens = torch.randint(4, VOCABULARY, (3, POSITIONS))
    tokens[1, 7:] = PAD
    plain, fused = (exact_model(mode)(tokens) for mode in ("false", "true"))
    torch.testing.assert_close(fused, plain, rtol=1e-12, atol=1e-12)


def test_the_fused_loss_has_the_gradients_of_the_plain_one(toy):
    inputs, labels = subwords.to_tensors(toy[1], POSITIONS)
    losses, gradients = [], []
    for mode in ("false", "true"):
        model = exact_model(mode)
        losses.append(model.loss(inputs[:16], labels[:16]))
        gradients.append(torch.autograd.grad(losses[-1], list(model.parameters())))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["false", "true"])
def test_no_token_sees_those_behind_it_or_padding(mode):
    model, tokens = exact_model(mode), torch.randint(4, VOCABULARY, (2, POSITIONS))
    tokens[1, 7:] = PAD
    logits = model(tokens)
    changed = tokens.clone()
    changed[0, 7:] = torch.randint(4, VOCABULARY, (POSITIONS - 7,))
    assert torch.equal(model(changed)[0, :7], logits[0, :7])
    assert not torch.equal(model(changed)[0, 7:], logits[0, 7:])
    torch.testing.assert_close(model(tokens[1:, :7])[0], logits[1, :7], rtol=1e-12, atol=1e-12)


# --- checkpoints ----------------------------------------------------------------------------------


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "flipped":  # more than the padding between two tensors
        middle = slice(len(content) // 2, len(content) // 2 + 200)
        content[middle] = bytes(byte ^ 1 for byte in content[middle])
    elif how == "truncated":
        del content[len(content) // 2 :]
    elif how == "empty":
        content.clear()
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["flipped", "truncated", "empty"])
def test_after_a_corrupt_checkpoint_the_previous_one_is_resumed(trainer_of, tmp_path, how):
    expected = losses_of(trainer_of("false"), 2, tmp_path, every=3)
    checkpoints = Checkpoints(tmp_path)
    damage(checkpoints.newest, how)
    trainer = trainer_of("false")
    trainer.load(checkpoints.load())
    (warning,) = checkpoints.warnings
    assert "corrupt checkpoint" in warning and str(checkpoints.newest) in warning
    assert len(trainer.records) == 9
    assert losses_of(trainer, 2, tmp_path, every=3) == expected
    assert len(checkpoints.load()["records"]) == 10
    assert checkpoints.corrupt.exists()  # and has not become the previous one
    assert len(torch.load(checkpoints.previous)["records"]) == 9


def test_two_corrupt_checkpoints_are_an_error_that_names_both(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for value in range(2):
        checkpoints.save({"value": value})
    for path in (checkpoints.newest, checkpoints.previous):
        damage(path, "truncated")
    with pytest.raises(UserError, match=r"(?s)checkpoint\.pt.*checkpoint\.previous\.pt"):
        checkpoints.load()


@pytest.mark.parametrize("call, nth", [("fsync", 1), ("replace", 1), ("replace", 2)])
def test_an_unfinished_checkpoint_leaves_the_previous_one_whole(tmp_path, monkeypatch, call, nth):
    checkpoints = Checkpoints(tmp_path)
    for value in (1, 2):
        checkpoints.save({"value": value})
    calls, original = [], getattr(os, call)

    def killed(*args):
        calls.append(args)
        if len(calls) == nth:
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save({"value": 3})
    assert Checkpoints(tmp_path).load() == {"value": 2}
    checkpoints.save({"value": 4})
    assert Checkpoints(tmp_path).load() == {"value": 4}
    assert list(tmp_path.glob("*.tmp")) == []


# --- decoding -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translator(toy):
    """A model that has learned something, and prompts of many lengths."""
    pieces, train, held_out = toy
    torch.manual_seed(0)
    model = build_model(SIZES, "true")
    data = subwords.to_tensors(train, POSITIONS)
    trainer = Trainer(model, model.loss, data, data, TRAINING)
    for _ in range(40):
        trainer.records.append(trainer.train_step())
    return model.eval(), [*held_out.prompts, *train.prompts[:30]]


def reference_beam_search(model, prompt, width):
    """One sentence, one beam a call."""
    beams = [(0.0, [], False)]
    while not all(ended for *_, ended in beams):
        candidates = [beam for beam in beams if beam[2]]
        for total, tokens, ended in beams:
            if ended:
                continue
            row = torch.tensor([prompt + tokens])
            log_probs = decoding.next_log_probs(model, row, torch.tensor([row.shape[1]]))[0]
            for token, log_prob in enumerate(log_probs.tolist()):
                found = [*tokens, token]
                ends = token == subwords.END or row.shape[1] == model.config.positions
                candidates.append((total + log_prob, found, ends))
        beams = sorted(candidates, key=lambda beam: -beam[0] / len(beam[1]))[:width]
    return [token for token in beams[0][1] if token != subwords.END]


@torch.no_grad()
@pytest.mark.parametrize("width", beyond([1], [1, 2, 3]))
def test_beam_search_finds_what_a_search_beam_by_beam_finds(translator, width):
    model, prompts = translator
    found = decoding.beam_search(model, prompts[:12], width)
    assert found == [reference_beam_search(model, prompt, width) for prompt in prompts[:12]]
    assert (found == decoding.beam_search(model, prompts[:12], 1)) == (width == 1)


def test_translations_do_not_depend_on_the_padding_of_a_batch(translator):
    model, prompts = translator
    for width in (1, 3):
        alone = [decoding.beam_search(model, [prompt], width)[0] for prompt in prompts[:12]]
        assert decoding.beam_search(model, prompts[:12], width) == alone
    assert len({len(prompt) for prompt in prompts[:12]}) > 2


def test_a_translation_ends_where_the_positions_do(translator):
    model, _ = translator
    prompt = [5] * (POSITIONS - 1) + [subwords.SEPARATOR]
    for width in (1, 3):
        (tokens,) = decoding.beam_search(model, [prompt], width)
        assert len(tokens) <= 1


def test_bleu_is_100_for_the_references_and_less_for_anything_else():
    references = [target for _, target in toy_pairs(20) if len(target) > 8]
    assert decoding.bleu(references, references) == pytest.approx(100)
    assert 0 < decoding.bleu([text[2:] for text in references], references) < 95


# --- data -----------------------------------------------------------------------------------------


def test_malformed_lines_are_counted_named_and_skipped(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(
        b"\xef\xbb\xbfja\tyes\r\nno tab\n\ttarget\nsource\t \n\nein\ttwo\ttabs\n"
        b"\xff\tlatin\nnein\tno\n"
    )
    found = corpus.load_corpus(str(path), (), tmp_path)
    assert found.pairs == [("ja", "yes"), ("nein", "no")]
    assert [*found.malformed] == [2, 3, 4, 5, 6, 7]
    assert found.describe() == (
        "2 sentence pairs; 6 malformed lines skipped: line 2: has 0 tabs, wanted 1; "
        "line 3: has an empty source; line 4: has an empty target; ..."
    )


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """An empty folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def write_program(path, line):
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("apt_get", [None, "echo 'E: Temporary failure resolving' >&2; exit 100"])
def test_without_a_network_the_error_says_what_to_run_or_to_pass(tmp_path, programs, apt_get):
    if apt_get:
        write_program(programs / "apt-get", apt_get)
    with pytest.raises(UserError) as error:
        corpus.load_corpus("auto", ["de", "en"], tmp_path / "cache")
    for part in ("libreoffice-help-de", "apt-get update", "--data FILE.tsv"):
        assert part in str(error.value)
    assert ("Temporary failure" if apt_get else "apt-get") in str(error.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_packages_without_pairs_are_an_error_and_are_not_kept(tmp_path, programs):
    write_program(programs / "apt-get", "exit 0")
    with pytest.raises(UserError, match="libreoffice-help-de.* have no pages"):
        corpus.load_corpus("auto", ["de", "en"], tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_help_pages_are_aligned_by_the_id_of_their_paragraphs(tmp_path):
    pages = {
        "de": '<p id="par_1">Der erste Satz hier. Und noch ein Satz.</p>'
        '<h1 id="hd_2">Ein <b>kurzer</b>\n Titel</h1><p id="par_3">nur zwei</p>',
        "en-US": '<h1 id="hd_2">A short &quot;title&quot;</h1><p id="par_3">only two</p>'
        '<p id="par_1">The first sentence here. And one more sentence.</p>',
    }
    for name, body in pages.items():
        page = tmp_path / name / "text" / "page.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<p id="par_0">not this part at all</p><div id="DisplayArea">{body}</div>')
    assert list(libreoffice.aligned(tmp_path, "de", "en-US")) == [
        ("Der erste Satz hier.", "The first sentence here."),
        ("Und noch ein Satz.", "And one more sentence."),
        ("Ein kurzer Titel", 'A short "title"'),
    ]


def test_rows_of_the_hub_are_pairs_and_a_missing_network_is_named(tmp_path, monkeypatch):
    rows = [{"translation": {"de": "ja", "en": "yes"}}, {"translation": {"de": "ja"}}, {"text": ""}]
    hub = types.SimpleNamespace(load_dataset=lambda name, split: rows)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    found = corpus.load_corpus("hf:some/set", ["de", "en"], tmp_path)
    assert found.pairs == [("ja", "yes")]
    assert [*found.malformed] == [2, 3]

    def offline(name, split):
        raise ConnectionError("Couldn't reach the hub")

    hub.load_dataset = offline
    with pytest.raises(UserError, match="reach the hub.*--data FILE.tsv"):
        corpus.load_corpus("hf:some/set", ["de", "en"], tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets"):
        corpus.load_corpus("hf:some/set", ["de", "en"], tmp_path)


def test_no_target_sentence_is_in_both_training_and_test_data():
    pairs = toy_pairs(2000)
    split = corpus.split_by_target(pairs)
    parts = [{target for _, target in part} for part in (split.train, split.valid, split.test)]
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    assert all(parts) and sorted(split.train + split.valid + split.test) == sorted(pairs)
    shuffled = corpus.split_by_target(reversed(pairs))
    assert sorted(shuffled.test) == sorted(split.test)


def test_subwords_are_trained_once_for_the_same_pairs_and_vocabulary(tmp_path, monkeypatch):
    pairs = toy_pairs(100)
    subwords.load_subwords(pairs, VOCABULARY, tmp_path)
    monkeypatch.setattr(subwords, "_train", None)
    pieces, _ = subwords.load_subwords(pairs, VOCABULARY, tmp_path)
    assert pieces.decode(pieces.encode("a b H")) == "a b H"
    for other in ((pairs[1:], VOCABULARY), (pairs, VOCABULARY - 1)):
        with pytest.raises(TypeError):  # would train
            subwords.load_subwords(*other, tmp_path)


def test_a_vocabulary_that_is_too_large_is_named_with_the_largest(tmp_path):
    with pytest.raises(UserError, match="--vocabulary 5000 does not fit 50 training pairs.*<="):
        subwords.load_subwords(toy_pairs(50), 5000, tmp_path)


def test_pairs_that_do_not_fit_are_left_out_and_the_longest_fits_exactly(toy):
    pieces = toy[0]
    pairs = toy_pairs(50)
    lengths = [sum(map(len, pieces.encode(list(pair)))) + 1 for pair in pairs]
    kept = subwords.encode(pairs, pieces, max(lengths))
    assert (len(kept), kept.too_long) == (50, 0)
    inputs, labels = subwords.to_tensors(kept, max(lengths))
    longest = lengths.index(max(lengths))
    assert inputs[longest, -1] != PAD and labels[longest, -1] == subwords.END
    fewer = subwords.encode(pairs, pieces, max(lengths) - 1)
    assert fewer.too_long == lengths.count(max(lengths)) == 50 - len(fewer)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def toy_command(toy_file, tmp_path):
    """Arguments for data and toy sizes."""
    sizes = dataclasses.asdict(SIZES) | dataclasses.asdict(TRAINING)
    arguments = {"data": toy_file, "cache": tmp_path} | sizes
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in arguments.items()]
    return [text for pair in pairs for text in pair]


@pytest.fixture
def command(toy_command):
    """To train."""
    return [*toy_command, "--use-fused-kernel", "true", "--checkpoint-every", "3"]


def read_losses(folder):
    with (folder / "losses.csv").open() as file:
        return [row["loss"] for row in csv.DictReader(file)]


@pytest.mark.exhaustive
def test_a_killed_process_resumes_bit_for_bit(command, tmp_path, capsys):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    program = [sys.executable, str(ROOT / "examples" / "train_translation.py"), *command]
    process = subprocess.Popen(
        [*program, "--output", str(killed), "--epochs", "100000"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None and not (killed / "checkpoint.previous.pt").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = len(Checkpoints(killed).load()["records"])
    epochs = str(done // STEPS + 2)
    for folder, options in ((killed, ["--resume"]), (whole, [])):
        train_translation.main([*command, "--output", str(folder), "--epochs", epochs, *options])
    assert f"training goes on after step {done}" in capsys.readouterr().out
    assert read_losses(killed) == read_losses(whole)
    assert len(read_losses(whole)) == int(epochs) * STEPS
    assert (whole / "losses.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((whole / "result.json").read_text())
    assert len(result["epochs"]) == int(epochs)
    assert {"greedy", "beam of 4"} < result["bleu"].keys()
    assert all(math.isfinite(score) for score in result["bleu"].values())


def test_a_folder_with_a_checkpoint_is_not_overwritten(command, tmp_path, capsys):
    Checkpoints(tmp_path / "old").save({})
    assert train_translation.main([*command, "--output", str(tmp_path / "old")]) == 1
    assert "has a checkpoint; pass --resume" in capsys.readouterr().err


def test_a_batch_larger_than_the_data_is_named(command, tmp_path, capsys):
    options = ["--batch-size", "4000", "--output", str(tmp_path / "new")]
    assert train_translation.main([*command, *options]) == 1
    assert "--batch-size is 4000, but an epoch has 80 pairs" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_modes_side_by_side_are_written_and_drawn(toy_command, tmp_path, capsys):
    folder = tmp_path / "comparison"
    compare_translation.main([*toy_command, "--dropout", "0", "--output", str(folder)])
    with (folder / "losses.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["mode"] for row in rows] == [mode for mode in FUSED_KERNEL for _ in range(STEPS)]
    last = {row["mode"]: float(row["loss"]) for row in rows}
    assert last["true"] == pytest.approx(last["false"], rel=1e-3)
    assert last["compile"] == pytest.approx(last["false"], rel=1e-3)
    assert (folder / "losses.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    for text in ("largest relative difference", "speed-up", "softmax and its mask", "took no"):
        assert text in output


def records_of(losses, seconds):
    return [
        StepRecord(step, 0, loss, 1, time)
        for step, (loss, time) in enumerate(zip(losses, seconds, strict=True))
    ]


def test_speed_is_that_of_the_steps_after_compilation_and_losses_differ_relatively():
    records = {
        "false": records_of([4.0, 2.0, 2.0], [1.0, 2.0, 6.0]),
        "compile": records_of([4.0, 2.1, 1.9], [60.0, 1.0, 3.0]),
    }
    assert comparison.speed_up(records, "compile") == 2
    assert comparison.largest_difference(records, [0, 1]) == pytest.approx(0.05)
    assert comparison.largest_difference(records, [0]) == 0


def test_a_profile_names_every_part_of_an_eager_step(trainer_of):
    shares = comparison.profile_step(trainer_of("false"))
    assert shares.keys() == {*comparison.PARTS, "rest"}
    assert all(milliseconds > 0 for milliseconds in shares.values())


def test_autocast_leaves_float32_alone():
    with autocast(torch.device("cpu"), "float32"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
