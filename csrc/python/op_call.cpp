// The Python module fusedops.lib.op_call: what a call of an op does before its kernel, in eager
// code and in compiled code on the CPU.
//
// torch.ops matches the arguments of every call against a schema, which takes longer than the rest
// of a small call. Here the argument types of an op are known beforehand. A call whose arguments
// have exactly these types goes directly to the kernel if its tensors are on the CPU, and otherwise
// to the dispatcher. Every other call, and every call that fails, goes to torch.ops, which knows
// all conversions and raises the error. Where a matrix product has filled the caches with other
// data, as in a model, the way through torch.ops takes 60 to 150 us longer.
//
// An EagerOp first finds out who has to see a call. A call that autograd records goes to the op's
// autograd function, and a call that a mode, a trace, a transform, forward mode or a subclass has
// to see goes to torch.ops.
//
// ops/registration/call.py does the same in Python, for Pythons that do not load this module.
//
// Only Python's limited API of 3.10 and LibTorch's stable ABI are used, so that one module serves
// every Python and torch.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

using torch::headeronly::ScalarType;
namespace stable = torch::stable::detail;

constexpr Py_ssize_t kMaxArguments = 24;
constexpr int64_t kFewElements = 4096;

struct Release {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
// A reference that is released at the end of its scope. It is null if an error is set.
using Owned = std::unique_ptr<PyObject, Release>;

// A function of torch's extension modules. A call through Python takes 20 to 40 ns; a call of the C
// function itself saves 5 to 10 of them. Only functions that are METH_NOARGS, or METH_FASTCALL with
// METH_KEYWORDS, are called in this way.
class Builtin {
 public:
  Builtin() = default;
  explicit Builtin(PyObject* function) : function_(function) {
    if (!PyCFunction_CheckExact(function)) return;
    self_ = PyCFunction_GetSelf(function);
    pointer_ = PyCFunction_GetFunction(function);
    flags_ = PyCFunction_GetFlags(function);
  }

  // Calls the function with one argument, or with none.
  Owned operator()(PyObject* argument = nullptr) const {
    if (flags_ == METH_NOARGS) return Owned(pointer_(self_, nullptr));
    if (flags_ == (METH_FASTCALL | METH_KEYWORDS)) {
      const auto function = reinterpret_cast<ArrayFunction>(reinterpret_cast<void (*)()>(pointer_));
      return Owned(function(self_, &argument, argument == nullptr ? 0 : 1, nullptr));
    }
    return Owned(PyObject_CallFunctionObjArgs(function_, argument, nullptr));
  }

 private:
  using ArrayFunction = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

  PyObject *function_ = nullptr, *self_ = nullptr;
  PyCFunction pointer_ = nullptr;
  int flags_ = 0;
};

// Objects of torch, which setup() sets before an op is bound.
struct TorchImports {
  std::array<PyTypeObject*, 2> plain_types;  // torch.Tensor and torch.nn.Parameter
  Builtin handle_of;                         // returns a capsule with a new AtenTensorHandle
  Builtin tensor_of;                         // returns the tensor of a capsule
  int takes_handle;                          // whether tensor_of takes ownership of the handle
  std::vector<Builtin> watchers;             // return whether a mode is active
  PyObject* forward_ad;                      // a dict; _current_level is -1 outside forward mode
  Builtin has_autocast;                      // returns whether autocast is enabled for any device
  Builtin is_grad_wrapper;                   // whether a transform has wrapped a tensor
  PyObject* profiler;                        // a dict; _is_profiler_enabled is a bool
  PyObject* is_neg;                          // whether the negation of a tensor is pending
  std::array<std::pair<PyObject*, ScalarType>, 4> dtypes{
      {{nullptr, ScalarType::Float},
       {nullptr, ScalarType::BFloat16},
       {nullptr, ScalarType::Half},
       {nullptr, ScalarType::Double}}};
};
TorchImports imports;

// Strings that name attributes of a tensor and of an autograd function's context, and keys of the
// dicts in TorchImports. setup() creates them and the capsule that tensor_of() passes to torch.
PyObject *requires_grad, *is_nested, *is_cuda, *dtype;
PyObject *to_save, *settings, *materialize_grads, *non_differentiable;
PyObject *current_level, *is_profiling, *capsule;

// The ways to run a call: kPlain, kRecorded and kWatched name the function of EagerOp that is
// called. kFailed says that an error is set. call.py has the same names for the first three.
enum State { kPlain, kRecorded, kWatched, kFailed = -1 };

// An op that a call runs by one of three functions, between which state_of() chooses.
struct EagerOp {
  std::string kinds;  // a letter for each argument of `plain`
  Owned plain, recorded, watched;
};

bool is_plain_tensor(PyObject* object) {
  return Py_TYPE(object) == imports.plain_types[0] || Py_TYPE(object) == imports.plain_types[1];
}

// Returns whether an object is true, or -1 if an error is set, as Python's own functions do.
int truth(const Owned& object) { return object ? PyObject_IsTrue(object.get()) : -1; }

int truth_of_attribute(PyObject* object, PyObject* name) {
  return truth(Owned(PyObject_GetAttr(object, name)));
}

// Returns the length of a tuple or list, or -1 for another sequence, which is left to torch.
Py_ssize_t length(PyObject* list) {
  if (PyTuple_Check(list)) return PyTuple_Size(list);
  return PyList_Check(list) ? PyList_Size(list) : -1;
}

PyObject* item(PyObject* list, Py_ssize_t index) {
  return PyTuple_Check(list) ? PyTuple_GetItem(list, index) : PyList_GetItem(list, index);
}

// --- who has to see a call ----------------------------------------------------------------------

// Returns whether a mode, a trace, a transform or forward-mode differentiation must see the op, or
// -1 if an error is set.
int is_watched() {
  for (const Builtin& watches : imports.watchers) {
    if (const int result = truth(watches())) return result;
  }
  PyObject* level = PyDict_GetItemWithError(imports.forward_ad, current_level);
  return level == nullptr ? -1 : PyLong_AsLong(level) >= 0;
}

// Returns whether a call that autograd records must go to torch.ops because of this tensor: it is
// nested, an ended transform of torch.func has left it wrapped, or autocast, where that is enabled
// for any device, may convert it. Returns -1 if an error is set. call.py has the same function as
// _needs_dispatcher().
int needs_dispatcher(PyObject* tensor, bool autocast) {
  if (const int nested = truth_of_attribute(tensor, is_nested)) return nested;
  if (const int wrapper = truth(imports.is_grad_wrapper(tensor))) return wrapper;
  return autocast ? truth_of_attribute(tensor, is_cuda) : 0;
}

// Returns whether is(tensor) holds for any tensor among the arguments and the elements of their
// lists, or -1 if an error is set.
template <class Is>
int any_tensor(const std::string& kinds, PyObject* const* args, Is is) {
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == 't' || kinds[i] == 'T') {
      if (const int result = is(args[i])) return result;
    }
    const Py_ssize_t count = kinds[i] == 'L' ? length(args[i]) : 0;
    for (Py_ssize_t j = 0; j < count; ++j) {
      if (const int result = is(item(args[i], j))) return result;
    }
  }
  return 0;
}

// Returns how to run a call with these arguments, by what torch's state and the tensors require.
State state_of(const std::string& kinds, PyObject* const* args) {
  if (const int watched = is_watched()) return watched < 0 ? kFailed : kWatched;
  const auto is_other = [](PyObject* object) {
    return object != Py_None && !is_plain_tensor(object);
  };
  if (any_tensor(kinds, args, is_other)) return kWatched;
  if (!aoti_torch_grad_mode_is_enabled()) return kPlain;
  const auto requires = [](PyObject* tensor) {
    return tensor == Py_None ? 0 : truth_of_attribute(tensor, requires_grad);
  };
  const int is_recorded = any_tensor(kinds, args, requires);
  if (is_recorded <= 0) return is_recorded < 0 ? kFailed : kPlain;
  const int autocast = truth(imports.has_autocast());
  if (autocast < 0) return kFailed;
  const auto needs = [&](PyObject* tensor) {
    return tensor == Py_None ? 0 : needs_dispatcher(tensor, autocast);
  };
  const int is_for_dispatcher = any_tensor(kinds, args, needs);
  return is_for_dispatcher < 0 ? kFailed : is_for_dispatcher ? kWatched : kRecorded;
}

PyObject* state(PyObject*, PyObject* const* tensors, Py_ssize_t count) {
  const State result = state_of(std::string(count, 'T'), tensors);
  return result == kFailed ? nullptr : PyLong_FromLong(result);
}

// --- arguments ----------------------------------------------------------------------------------

bool is_int64(PyObject* object) {
  if (!PyLong_CheckExact(object)) return false;
  int overflows = 0;
  PyLong_AsLongLongAndOverflow(object, &overflows);
  return overflows == 0;
}
int64_t int64_of(PyObject* object) { return PyLong_AsLongLong(object); }

bool is_float(PyObject* object) { return PyFloat_CheckExact(object); }

bool is_bool(PyObject* object) { return object == Py_True || object == Py_False; }
bool is_true(PyObject* object) { return object == Py_True; }

auto find_dtype(PyObject* object) {
  return std::find_if(imports.dtypes.begin(), imports.dtypes.end(), [&](const auto& dtype) {
    return dtype.first == object;
  });
}
bool is_dtype(PyObject* object) { return find_dtype(object) != imports.dtypes.end(); }
ScalarType dtype_of(PyObject* object) { return find_dtype(object)->second; }

// Returns a handle that the caller owns, or null with an error set if Python is out of memory.
AtenTensorHandle handle_of(PyObject* tensor) {
  const Owned made = imports.handle_of(tensor);
  if (!made) return nullptr;
  return static_cast<AtenTensorHandle>(PyCapsule_GetPointer(made.get(), nullptr));
}

template <bool (*is)(PyObject*)>
bool is_none_or(PyObject* object) {
  return object == Py_None || is(object);
}

template <bool (*is)(PyObject*)>
bool is_list_of(PyObject* object) {
  const Py_ssize_t count = length(object);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!is(item(object, i))) return false;
  }
  return count >= 0;
}

template <auto convert>
StableIValue value_of(PyObject* object) {
  return stable::from(convert(object));
}

template <auto convert>
StableIValue optional_of(PyObject* object) {
  std::optional<decltype(convert(object))> value;
  if (object != Py_None) value = convert(object);
  return stable::from(value);
}

template <auto convert>
StableIValue list_of(PyObject* object) {
  using T = decltype(convert(object));
  const Py_ssize_t count = length(object);
  const std::unique_ptr<T[]> values(new T[count]);
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = convert(item(object, i));
  return stable::from(
      torch::headeronly::HeaderOnlyArrayRef<T>(values.get(), static_cast<size_t>(count)));
}

StableIValue no_tensor(PyObject*) { return stable::from(std::optional<AtenTensorHandle>()); }

// A kind of argument: its letter in call.py, whether it takes an object, and how such an object is
// converted to a value as the dispatcher takes it. run_converted() converts tensors.
struct Kind {
  char letter;
  bool (*fits)(PyObject*);
  StableIValue (*converted)(PyObject*);
};
constexpr Kind kKinds[] = {
    {'t', is_plain_tensor, nullptr},
    {'T', is_none_or<is_plain_tensor>, no_tensor},
    {'i', is_int64, value_of<int64_of>},
    {'N', is_none_or<is_int64>, optional_of<int64_of>},
    {'f', is_float, value_of<PyFloat_AsDouble>},
    {'F', is_none_or<is_float>, optional_of<PyFloat_AsDouble>},
    {'b', is_bool, value_of<is_true>},
    {'d', is_dtype, value_of<dtype_of>},
    {'D', is_none_or<is_dtype>, optional_of<dtype_of>},
    {'I', is_list_of<is_int64>, list_of<int64_of>},
    {'B', is_list_of<is_bool>, list_of<is_true>},
};

bool takes_nothing(PyObject*) { return false; }

// Returns the kinds of some letters. One that kKinds lacks takes no object, so that no call fits.
std::vector<Kind> kinds_of(const std::string& letters) {
  std::vector<Kind> kinds;
  for (const char letter : letters) {
    const auto* const kind = std::find_if(
        std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.letter == letter; });
    kinds.push_back(kind == std::end(kKinds) ? Kind{letter, takes_nothing, nullptr} : *kind);
  }
  return kinds;
}

using Kernel = void(StableIValue*, uint64_t, uint64_t);  // BoxedKernel of register_kernels.h

// An op that a call runs by run_converted() or, if an argument does not fit or that fails, by
// `fallback`.
struct Op {
  std::string name;
  std::vector<Kind> kinds;       // of each argument
  Py_ssize_t results, returned;  // the results of the op, and how many of them a call returns
  Owned fallback;
  Kernel* kernel;  // that of the CPU
};

// --- results ------------------------------------------------------------------------------------

// Returns the tensor of a handle that the caller owns and gives away, or null if an error is set.
PyObject* tensor_of(AtenTensorHandle handle) {
  PyCapsule_SetPointer(capsule, handle);
  Owned tensor = imports.tensor_of(capsule);
  if (!imports.takes_handle) aoti_torch_delete_tensor_object(handle);
  return tensor.release();
}

// Returns the first `returned` results of a call, as one tensor or a tuple, and deletes the others.
// Returns null if an error is set.
PyObject* tensors_of(const Op& op, const StableIValue* results) {
  const auto handle_at = [&](Py_ssize_t i) { return stable::to<AtenTensorHandle>(results[i]); };
  for (Py_ssize_t i = op.returned; i < op.results; ++i) {
    aoti_torch_delete_tensor_object(handle_at(i));
  }
  if (op.returned == 0) Py_RETURN_NONE;
  if (op.returned == 1) return tensor_of(handle_at(0));
  Owned tensors(PyTuple_New(op.returned));
  for (Py_ssize_t i = 0; tensors && i < op.returned; ++i) {
    PyObject* tensor = tensor_of(handle_at(i));
    if (tensor == nullptr) return nullptr;
    PyTuple_SetItem(tensors.get(), i, tensor);
  }
  return tensors.release();
}

// --- calls --------------------------------------------------------------------------------------

bool all_fit(const Op& op, PyObject* const* args, Py_ssize_t count) {
  if (count != static_cast<Py_ssize_t>(op.kinds.size())) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!op.kinds[i].fits(args[i])) return false;
  }
  return true;
}

bool run_by_dispatcher(const Op& op, StableIValue* stack) {
  return torch_call_dispatcher(op.name.c_str(), "", stack, TORCH_ABI_VERSION) == TORCH_SUCCESS;
}

bool run_kernel(const Op& op, StableIValue* stack) {
  try {
    op.kernel(stack, op.kinds.size(), op.results);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Runs a function with Python's lock released, as torch.ops does, so that other threads run.
template <class Run>
bool without_lock(Run run) {
  PyThreadState* thread = PyEval_SaveThread();
  const bool succeeded = run();
  PyEval_RestoreThread(thread);
  return succeeded;
}

// What decides how an op runs on its tensors.
struct Tensors {
  bool lie_in_memory = true;  // of a CPU, as a kernel reads them
  int64_t elements = 0;

  // Adds a tensor. A sparse tensor has no rows in memory, and one of zeros that do not exist has no
  // address; where a negation is pending, the memory has other values. The dispatcher knows such
  // tensors.
  void add(PyObject* tensor, AtenTensorHandle handle) {
    int32_t device = -1, layout = -1;
    int64_t count = 0;
    const void* address = nullptr;
    aoti_torch_get_device_type(handle, &device);
    aoti_torch_get_layout(handle, &layout);
    aoti_torch_get_numel(handle, &count);
    elements += count;
    lie_in_memory = lie_in_memory && device == aoti_torch_device_type_cpu() &&
        layout == aoti_torch_layout_strided() &&
        torch_get_const_data_ptr(handle, &address) == AOTI_TORCH_SUCCESS &&
        (address != nullptr || count == 0) &&
        truth(Owned(PyObject_CallFunctionObjArgs(imports.is_neg, tensor, nullptr))) == 0;
  }
};

bool is_profiled() { return PyDict_GetItemWithError(imports.profiler, is_profiling) != Py_False; }

// Converts the arguments and runs the op, and returns whether that succeeded. If it did, the op's
// results are in `stack`; if not, a Python error may be set.
bool run_converted(const Op& op, PyObject* const* args, StableIValue* stack) {
  Tensors tensors;
  try {
    for (size_t i = 0; i < op.kinds.size(); ++i) {
      if (is_plain_tensor(args[i])) {
        const AtenTensorHandle handle = handle_of(args[i]);
        if (handle == nullptr) return false;
        tensors.add(args[i], handle);
        stack[i] =
            op.kinds[i].letter == 't' ? stable::from(handle) : stable::from(std::optional(handle));
      } else {
        stack[i] = op.kinds[i].converted(args[i]);
      }
      if (PyErr_Occurred()) return false;
    }
  } catch (const std::exception&) {  // out of memory for a list
    return false;
  }
  if (!tensors.lie_in_memory || is_profiled()) {
    return without_lock([&] { return run_by_dispatcher(op, stack); });
  }
  // To release Python's lock and take it again takes 0.1 us, as long as to compute few elements.
  if (tensors.elements <= kFewElements) return run_kernel(op, stack);
  return without_lock([&] { return run_kernel(op, stack); });
}

Owned tuple_of(PyObject* const* objects, Py_ssize_t count) {
  Owned tuple(PyTuple_New(count));
  for (Py_ssize_t i = 0; tuple && i < count; ++i) {
    PyTuple_SetItem(tuple.get(), i, Py_NewRef(objects[i]));
  }
  return tuple;
}

PyObject* call_by_tuple(PyObject* function, PyObject* const* args, Py_ssize_t count) {
  const Owned tuple = tuple_of(args, count);
  return tuple ? PyObject_Call(function, tuple.get(), nullptr) : nullptr;
}

// Calls recorded(arguments, *tensors): the tuple of all arguments, and then each tensor among them,
// or None in place of an optional tensor that is absent.
PyObject* call_recorded(const EagerOp& op, PyObject* const* args, Py_ssize_t count) {
  const Owned all = tuple_of(args, count);
  if (!all) return nullptr;
  std::vector<PyObject*> objects;
  objects.reserve(1 + count);
  objects.push_back(all.get());
  any_tensor(op.kinds, args, [&](PyObject* tensor) { return objects.push_back(tensor), 0; });
  return call_by_tuple(op.recorded.get(), objects.data(), static_cast<Py_ssize_t>(objects.size()));
}

PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const Op& op = *static_cast<Op*>(PyCapsule_GetPointer(self, nullptr));
  StableIValue stack[kMaxArguments];
  if (all_fit(op, args, count) && run_converted(op, args, stack)) return tensors_of(op, stack);
  if (PyErr_Occurred()) return nullptr;
  return call_by_tuple(op.fallback.get(), args, count);
}

using FastCall = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
PyCFunction as_method(FastCall function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// Returns whether bind() has made a function, so that C++ can use call() in place of it.
bool is_bound(PyObject* function) {
  return PyCFunction_CheckExact(function) && PyCFunction_GetFunction(function) == as_method(call);
}

PyObject* call_plain(PyObject* function, PyObject* const* args, Py_ssize_t count) {
  if (is_bound(function)) {
    return call(PyCFunction_GetSelf(function), args, count);
  }
  return call_by_tuple(function, args, count);
}

PyObject* call_eager(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const EagerOp& op = *static_cast<EagerOp*>(PyCapsule_GetPointer(self, nullptr));
  const bool has_all = count == static_cast<Py_ssize_t>(op.kinds.size());
  switch (has_all ? state_of(op.kinds, args) : kWatched) {
    case kPlain:
      return call_plain(op.plain.get(), args, count);
    case kRecorded:
      return call_recorded(op, args, count);
    case kWatched:
      return call_by_tuple(op.watched.get(), args, count);
    default:
      return nullptr;
  }
}

// --- the forward pass of autograd functions -----------------------------------------------------

// Positions among the arguments of an op and, behind them, its results. The dtype of a tensor has
// ~i, where the tensor has i.
using Positions = std::vector<Py_ssize_t>;

// The forward pass of an op's autograd function: what runs the op, how many results it returns, and
// what the derivative formula needs, as saved.py describes it.
struct Forward {
  Owned run;
  Py_ssize_t returned;
  Positions tensors, settings, constants;
};

Owned values_at(const Positions& positions, PyObject* const* values) {
  const auto count = static_cast<Py_ssize_t>(positions.size());
  Owned tuple(PyTuple_New(count));
  for (Py_ssize_t i = 0; tuple && i < count; ++i) {
    const Py_ssize_t at = positions[i];
    const bool is_list = at >= 0 && PyList_Check(values[at]);  // the caller may change its list
    PyObject* value = is_list ? PyList_AsTuple(values[at])
        : at >= 0             ? Py_NewRef(values[at])
                              : PyObject_GetAttr(values[~at], dtype);
    if (value == nullptr) return nullptr;
    PyTuple_SetItem(tuple.get(), i, value);
  }
  return tuple;
}

bool set(PyObject* ctx, PyObject* name, const Owned& value) {
  return value && PyObject_SetAttr(ctx, name, value.get()) == 0;
}

// Stores in `ctx` what the formula needs, as the methods of torch's FunctionCtx do. Returns false
// if an error is set.
bool save(const Forward& forward, PyObject* ctx, PyObject* const* values, bool has_one_result) {
  if (!set(ctx, settings, values_at(forward.settings, values))) return false;
  if (!set(ctx, to_save, values_at(forward.tensors, values))) return false;
  if (has_one_result) return true;
  if (PyObject_SetAttr(ctx, materialize_grads, Py_False) != 0) return false;
  // The first result is never a constant if it is the only one returned.
  return forward.returned == 1 ||
      set(ctx, non_differentiable, values_at(forward.constants, values));
}

PyObject* call_forward(PyObject* self, PyObject* const* args, Py_ssize_t) {
  const Forward& forward = *static_cast<Forward*>(PyCapsule_GetPointer(self, nullptr));
  PyObject *ctx = args[0], *given = args[1];
  PyObject* values[2 * kMaxArguments];
  const Py_ssize_t count = PyTuple_Size(given);
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = PyTuple_GetItem(given, i);
  Owned results(call(PyCFunction_GetSelf(forward.run.get()), values, count));
  if (!results) return nullptr;
  const bool has_one = !PyTuple_Check(results.get());
  const Py_ssize_t result_count = has_one ? 1 : PyTuple_Size(results.get());
  for (Py_ssize_t i = 0; i < result_count; ++i) {
    values[count + i] = has_one ? results.get() : PyTuple_GetItem(results.get(), i);
  }
  if (!save(forward, ctx, values, has_one)) return nullptr;
  if (forward.returned == 1) return Py_NewRef(values[count]);
  return tuple_of(values + count, forward.returned).release();
}

// --- the module ---------------------------------------------------------------------------------

PyMethodDef call_method = {"call", as_method(call), METH_FASTCALL, nullptr};
PyMethodDef eager_method = {"call", as_method(call_eager), METH_FASTCALL, nullptr};
PyMethodDef forward_method = {"forward", as_method(call_forward), METH_FASTCALL, nullptr};

// Returns a function of Python that owns what it calls.
template <class Callee>
PyObject* function_of(PyMethodDef* method, std::unique_ptr<Callee> callee) {
  const Owned self(PyCapsule_New(callee.get(), nullptr, [](PyObject* owner) {
    delete static_cast<Callee*>(PyCapsule_GetPointer(owner, nullptr));
  }));
  if (!self) return nullptr;
  callee.release();
  return PyCFunction_NewEx(method, self.get(), nullptr);
}

PyObject* bind(PyObject*, PyObject* args) {
  const char *name, *kinds;
  Py_ssize_t results, returned;
  PyObject* fallback;
  Py_ssize_t kernel;
  if (!PyArg_ParseTuple(args, "ssnnOn", &name, &kinds, &results, &returned, &fallback, &kernel)) {
    return nullptr;
  }
  auto op = std::make_unique<Op>(
      Op{name, kinds_of(kinds), results, returned, Owned(Py_NewRef(fallback)),
         reinterpret_cast<Kernel*>(kernel)});
  if (std::max<Py_ssize_t>(op->kinds.size(), results) > kMaxArguments) {
    PyErr_Format(PyExc_ValueError, "%s has more than %zd arguments", name, kMaxArguments);
    return nullptr;
  }
  return function_of(&call_method, std::move(op));
}

PyObject* eager(PyObject*, PyObject* args) {
  const char* kinds;
  PyObject *plain, *recorded, *watched;
  if (!PyArg_ParseTuple(args, "sOOO", &kinds, &plain, &recorded, &watched)) return nullptr;
  const auto owned = [](PyObject* function) { return Owned(Py_NewRef(function)); };
  return function_of(
      &eager_method,
      std::make_unique<EagerOp>(EagerOp{kinds, owned(plain), owned(recorded), owned(watched)}));
}

Positions positions_of(PyObject* tuple) {
  Positions positions;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) {
    positions.push_back(PyLong_AsSsize_t(PyTuple_GetItem(tuple, i)));
  }
  return positions;
}

PyObject* saving(PyObject*, PyObject* args) {
  PyObject *run, *tensors, *settings, *constants;
  Py_ssize_t returned;
  if (!PyArg_ParseTuple(
          args, "OnO!O!O!", &run, &returned, &PyTuple_Type, &tensors, &PyTuple_Type, &settings,
          &PyTuple_Type, &constants)) {
    return nullptr;
  }
  if (!is_bound(run)) Py_RETURN_NONE;
  return function_of(
      &forward_method,
      std::make_unique<Forward>(Forward{
          Owned(Py_NewRef(run)), returned, positions_of(tensors), positions_of(settings),
          positions_of(constants)}));
}

// The four dtypes are in the order of TorchImports::dtypes.
PyObject* setup(PyObject*, PyObject* args) {
  auto& dtypes = imports.dtypes;
  PyObject *handle_of, *tensor_of, *watchers, *has_autocast, *is_grad_wrapper;
  if (!PyArg_ParseTuple(
          args, "O!O!OOp(OOOO)O!O!OOO!O", &PyType_Type, &imports.plain_types[0], &PyType_Type,
          &imports.plain_types[1], &handle_of, &tensor_of, &imports.takes_handle, &dtypes[0].first,
          &dtypes[1].first, &dtypes[2].first, &dtypes[3].first, &PyTuple_Type, &watchers,
          &PyDict_Type, &imports.forward_ad, &has_autocast, &is_grad_wrapper, &PyDict_Type,
          &imports.profiler, &imports.is_neg)) {
    return nullptr;
  }
  requires_grad = PyUnicode_InternFromString("requires_grad");
  is_nested = PyUnicode_InternFromString("is_nested");
  is_cuda = PyUnicode_InternFromString("is_cuda");
  dtype = PyUnicode_InternFromString("dtype");
  to_save = PyUnicode_InternFromString("to_save");
  settings = PyUnicode_InternFromString("settings");
  materialize_grads = PyUnicode_InternFromString("materialize_grads");
  non_differentiable = PyUnicode_InternFromString("non_differentiable");
  current_level = PyUnicode_InternFromString("_current_level");
  is_profiling = PyUnicode_InternFromString("_is_profiler_enabled");
  capsule = PyCapsule_New(&imports, nullptr, nullptr);  // any pointer but null
  if (PyErr_Occurred()) return nullptr;
  Py_INCREF(args);  // with all that it holds; never released, because the module is not unloaded
  imports.handle_of = Builtin(handle_of);
  imports.tensor_of = Builtin(tensor_of);
  imports.has_autocast = Builtin(has_autocast);
  imports.is_grad_wrapper = Builtin(is_grad_wrapper);
  imports.watchers.clear();
  for (Py_ssize_t i = 0; i < PyTuple_Size(watchers); ++i) {
    imports.watchers.emplace_back(PyTuple_GetItem(watchers, i));
  }
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS,
     "setup(Tensor, Parameter, handle_of, tensor_of, takes_handle, dtypes, watchers, forward_ad, "
     "has_autocast, is_grad_wrapper, profiler, is_neg): stores the objects of torch that calls "
     "need."},
    {"state", as_method(state), METH_FASTCALL,
     "state(*tensors): the State of a call on these tensors; an entry may be None."},
    {"bind", bind, METH_VARARGS,
     "bind(name, kinds, results, returned, fallback, kernel): returns a function that calls the "
     "op; kernel is the address of its kernel for CPUs."},
    {"eager", eager, METH_VARARGS,
     "eager(kinds, plain, recorded, watched): returns a function that calls one of the three."},
    {"saving", saving, METH_VARARGS,
     "saving(run, returned, tensors, settings, constants): returns the forward pass of an autograd "
     "function that calls `run`, or None if that is not a function of bind()."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "op_call", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_op_call() { return PyModule_Create(&module); }
