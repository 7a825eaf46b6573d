"""Has the texts of the demo: sentences, some of which are paraphrases of each other, and passages
made of several sentences."""

from __future__ import annotations

import random

SENTENCES = [
    "The ferry to the island leaves every morning at half past six.",
    "Each day at 6:30 a boat departs for the island.",
    "My grandmother keeps her recipes in an old biscuit tin.",
    "The biscuit tin holds the recipes that my grandma collected.",
    "After three weeks without rain, the river was too low for barges.",
    "Barges could no longer pass, because the drought had emptied the river.",
    "She sold her bicycle and bought a second-hand piano.",
    "With the money from her bike she got herself a used piano.",
    "The committee postponed its decision until the auditors had reported.",
    "No decision will be taken before the audit is finished.",
    "A fox has been sleeping under our garden shed since autumn.",
    "The compiler rejects this function because two of its types disagree.",
    "Fresh basil loses most of its scent when it is cooked for too long.",
    "The museum returned the bronze figures to the village they came from.",
    "Nobody at the station could say when the next train to Lyon would come.",
    "An electron microscope shows details that no optical lens can resolve.",
    "He forgot his umbrella in the library, and it was gone the next day.",
    "The orchestra tuned for ten minutes while the audience found their seats.",
    "Interest rates rose again, and fewer families applied for a mortgage.",
    "The vaccine protects for about ten years, then a booster is due.",
    "Two goals in extra time took the smallest club of the league to the final.",
    "Under the ice of that moon there may be an ocean of salt water.",
    "The old lighthouse was turned into a tiny hotel with four rooms.",
    "Please water the tomatoes while we are away and take what is ripe.",
]

PASSAGES = 104


def texts() -> list[str]:
    """Returns the sentences, then passages of up to four random sentences. The passages are the
    same in every run."""
    draw = random.Random(0)
    passages = (draw.sample(SENTENCES, draw.randint(1, 4)) for _ in range(PASSAGES))
    return [*SENTENCES, *map(" ".join, passages)]
