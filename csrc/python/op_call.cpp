// The Python module fusedops.lib.op_call: what an eager call of an op does before its kernel.
//
// torch.ops matches the arguments of every call against a schema, which takes longer than the rest
// of a small call. Here the argument types of an op are known beforehand. A call whose arguments
// have exactly these types goes directly to the dispatcher. Every other call, and every call that
// fails, goes to torch.ops, which knows all conversions and raises the error.
//
// ops/registration/call.py does the same in Python, for Pythons that do not load this module.
//
// Only Python's limited API of 3.10 and LibTorch's stable ABI are used, so that one module serves
// every Python and torch.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
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

// A reference that is released at the end of its scope. It is null if an error is set.
struct Release {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Release>;

// Objects of torch, which setup() sets before an op is bound.
struct TorchImports {
  std::array<PyTypeObject*, 2> plain_types;  // torch.Tensor and torch.nn.Parameter
  PyObject* handle_of;                       // returns a capsule with a new AtenTensorHandle
  PyObject* tensors_of;                      // turns capsules into tensors, which own the handles
  PyObject* watchers;                        // functions that return whether a mode is active
  PyObject* forward_ad;                      // the module; its level is -1 outside forward mode
  std::vector<std::pair<PyObject*, ScalarType>> dtypes;
};
TorchImports imports;

// Attribute names, created once.
PyObject *requires_grad, *current_level;

// call.py has the same names for these integers.
enum State { kPlain, kRecorded, kWatched, kFailed = -1 };

struct Op {
  std::string name;
  std::string kinds;  // a letter for each argument, as in fits()
  Py_ssize_t results;
  PyObject* fallback;
};

bool is_plain_tensor(PyObject* object) {
  return Py_TYPE(object) == imports.plain_types[0] || Py_TYPE(object) == imports.plain_types[1];
}

// Returns -1 if an error is set, as Python's own functions of this kind do.
int truth(const Owned& object) { return object ? PyObject_IsTrue(object.get()) : -1; }

// Whether a mode, a trace, a transform or forward-mode differentiation must see the op.
int is_watched() {
  const Py_ssize_t count = PyTuple_Size(imports.watchers);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const int result = truth(Owned(PyObject_CallNoArgs(PyTuple_GetItem(imports.watchers, i))));
    if (result != 0) return result;
  }
  const Owned level(PyObject_GetAttr(imports.forward_ad, current_level));
  return level ? PyLong_AsLong(level.get()) >= 0 : -1;
}

State state_of(PyObject* const* tensors, Py_ssize_t count) {
  if (const int watched = is_watched()) return watched < 0 ? kFailed : kWatched;
  const bool records = aoti_torch_grad_mode_is_enabled();
  State state = kPlain;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (tensors[i] == Py_None) continue;
    if (!is_plain_tensor(tensors[i])) return kWatched;
    if (!records || state == kRecorded) continue;
    const int required = truth(Owned(PyObject_GetAttr(tensors[i], requires_grad)));
    if (required < 0) return kFailed;
    if (required) state = kRecorded;
  }
  return state;
}

PyObject* state(PyObject*, PyObject* const* tensors, Py_ssize_t count) {
  const State result = state_of(tensors, count);
  return result == kFailed ? nullptr : PyLong_FromLong(result);
}

bool is_int64(PyObject* object) {
  if (!PyLong_CheckExact(object)) return false;
  int overflows = 0;
  PyLong_AsLongLongAndOverflow(object, &overflows);
  return overflows == 0;
}

bool is_bool(PyObject* object) { return object == Py_True || object == Py_False; }

// The length of a tuple or list, and -1 for other sequences, which are left to torch.
Py_ssize_t length(PyObject* list) {
  if (PyTuple_Check(list)) return PyTuple_Size(list);
  return PyList_Check(list) ? PyList_Size(list) : -1;
}

PyObject* item(PyObject* list, Py_ssize_t index) {
  return PyTuple_Check(list) ? PyTuple_GetItem(list, index) : PyList_GetItem(list, index);
}

template <class Is>
bool is_list_of(PyObject* object, Is is) {
  const Py_ssize_t count = length(object);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!is(item(object, i))) return false;
  }
  return count >= 0;
}

const ScalarType* dtype_of(PyObject* object) {
  const auto found = std::find_if(
      imports.dtypes.begin(), imports.dtypes.end(),
      [&](const auto& dtype) { return dtype.first == object; });
  return found == imports.dtypes.end() ? nullptr : &found->second;
}

bool fits(char kind, PyObject* object) {
  switch (kind) {
    case 't':
      return is_plain_tensor(object);
    case 'T':
      return object == Py_None || is_plain_tensor(object);
    case 'i':
      return is_int64(object);
    case 'N':
      return object == Py_None || is_int64(object);
    case 'f':
      return PyFloat_CheckExact(object);
    case 'F':
      return object == Py_None || PyFloat_CheckExact(object);
    case 'b':
      return is_bool(object);
    case 'd':
      return dtype_of(object) != nullptr;
    case 'D':
      return object == Py_None || dtype_of(object) != nullptr;
    case 'I':
      return is_list_of(object, is_int64);
    case 'B':
      return is_list_of(object, is_bool);
    default:
      return false;
  }
}

// Returns a handle that the caller owns, or null with an error set if Python is out of memory.
AtenTensorHandle handle_of(PyObject* tensor) {
  const Owned capsule(PyObject_CallFunctionObjArgs(imports.handle_of, tensor, nullptr));
  if (!capsule) return nullptr;
  return static_cast<AtenTensorHandle>(PyCapsule_GetPointer(capsule.get(), nullptr));
}

template <class T, class Convert>
StableIValue optional_of(PyObject* object, Convert convert) {
  std::optional<T> value;
  if (object != Py_None) value = convert(object);
  return stable::from(value);
}

template <class T, class Convert>
StableIValue list_of(PyObject* object, Convert convert) {
  const Py_ssize_t count = length(object);
  const std::unique_ptr<T[]> values(new T[count]);
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = convert(item(object, i));
  return stable::from(
      torch::headeronly::HeaderOnlyArrayRef<T>(values.get(), static_cast<size_t>(count)));
}

// The value of an object that fits() has accepted.
StableIValue converted(char kind, PyObject* object) {
  const auto integer = [](PyObject* o) { return static_cast<int64_t>(PyLong_AsLongLong(o)); };
  const auto boolean = [](PyObject* o) { return o == Py_True; };
  const auto dtype = [](PyObject* o) { return *dtype_of(o); };
  switch (kind) {
    case 't':
      return stable::from(handle_of(object));
    case 'T':
      return optional_of<AtenTensorHandle>(object, handle_of);
    case 'i':
      return stable::from(integer(object));
    case 'N':
      return optional_of<int64_t>(object, integer);
    case 'f':
      return stable::from(PyFloat_AsDouble(object));
    case 'F':
      return optional_of<double>(object, PyFloat_AsDouble);
    case 'b':
      return stable::from(boolean(object));
    case 'd':
      return stable::from(dtype(object));
    case 'D':
      return optional_of<ScalarType>(object, dtype);
    case 'I':
      return list_of<int64_t>(object, integer);
    default:
      return list_of<bool>(object, boolean);
  }
}

// Returns a list of capsules. They do not own their handles: torch takes them over.
Owned capsules_of(const StableIValue* results, Py_ssize_t count) {
  Owned capsules(PyList_New(count));
  for (Py_ssize_t i = 0; capsules && i < count; ++i) {
    PyObject* capsule = PyCapsule_New(stable::to<AtenTensorHandle>(results[i]), nullptr, nullptr);
    if (capsule == nullptr) return nullptr;
    PyList_SetItem(capsules.get(), i, capsule);
  }
  return capsules;
}

// Returns one tensor, or a tuple of several.
PyObject* tensors_of(const StableIValue* results, Py_ssize_t count) {
  const Owned capsules = capsules_of(results, count);
  if (!capsules) return nullptr;
  const Owned tensors(PyObject_CallFunctionObjArgs(imports.tensors_of, capsules.get(), nullptr));
  if (!tensors) return nullptr;
  return count == 1 ? PySequence_GetItem(tensors.get(), 0) : PySequence_Tuple(tensors.get());
}

bool all_fit(const Op& op, PyObject* const* args, Py_ssize_t count) {
  if (count != static_cast<Py_ssize_t>(op.kinds.size())) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!fits(op.kinds[i], args[i])) return false;
  }
  return true;
}

// Whether the op ran. If so, its results are in the stack.
bool dispatch(const Op& op, PyObject* const* args, StableIValue* stack) {
  try {
    for (size_t i = 0; i < op.kinds.size(); ++i) {
      stack[i] = converted(op.kinds[i], args[i]);
      if (PyErr_Occurred()) return false;
    }
  } catch (const std::exception&) {  // out of memory for a list
    return false;
  }
  PyThreadState* thread = PyEval_SaveThread();  // as torch.ops does, so that other threads run
  const AOTITorchError error = torch_call_dispatcher(op.name.c_str(), "", stack, TORCH_ABI_VERSION);
  PyEval_RestoreThread(thread);
  return error == TORCH_SUCCESS;
}

PyObject* call_fallback(const Op& op, PyObject* const* args, Py_ssize_t count) {
  const Owned tuple(PyTuple_New(count));
  if (!tuple) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Py_INCREF(args[i]);
    PyTuple_SetItem(tuple.get(), i, args[i]);
  }
  return PyObject_Call(op.fallback, tuple.get(), nullptr);
}

PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const Op& op = *static_cast<Op*>(PyCapsule_GetPointer(self, nullptr));
  StableIValue stack[kMaxArguments];
  if (all_fit(op, args, count) && dispatch(op, args, stack)) return tensors_of(stack, op.results);
  if (PyErr_Occurred()) return nullptr;
  return call_fallback(op, args, count);
}

using FastCall = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
PyCFunction as_method(FastCall function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef call_method = {"call", as_method(call), METH_FASTCALL, nullptr};

void delete_op(PyObject* capsule) {
  const auto* op = static_cast<Op*>(PyCapsule_GetPointer(capsule, nullptr));
  Py_DECREF(op->fallback);
  delete op;
}

PyObject* bind(PyObject*, PyObject* args) {
  const char *name, *kinds;
  Py_ssize_t results;
  PyObject* fallback;
  if (!PyArg_ParseTuple(args, "ssnO", &name, &kinds, &results, &fallback)) return nullptr;
  auto op = std::make_unique<Op>(Op{name, kinds, results, fallback});
  if (std::max<Py_ssize_t>(op->kinds.size(), results) > kMaxArguments) {
    PyErr_Format(PyExc_ValueError, "%s has more than %zd arguments", name, kMaxArguments);
    return nullptr;
  }
  const Owned self(PyCapsule_New(op.get(), nullptr, delete_op));
  if (!self) return nullptr;
  Py_INCREF(op.release()->fallback);
  return PyCFunction_NewEx(&call_method, self.get(), nullptr);
}

// `dtypes` are float32, bfloat16, float16 and float64.
PyObject* setup(PyObject*, PyObject* args) {
  std::array<PyObject*, 4> dtypes;
  if (!PyArg_ParseTuple(
          args, "O!O!OO(OOOO)O!O", &PyType_Type, &imports.plain_types[0], &PyType_Type,
          &imports.plain_types[1], &imports.handle_of, &imports.tensors_of, &dtypes[0], &dtypes[1],
          &dtypes[2], &dtypes[3], &PyTuple_Type, &imports.watchers, &imports.forward_ad)) {
    return nullptr;
  }
  requires_grad = PyUnicode_InternFromString("requires_grad");
  current_level = PyUnicode_InternFromString("_current_level");
  if (requires_grad == nullptr || current_level == nullptr) return nullptr;
  const std::array codes{
      ScalarType::Float, ScalarType::BFloat16, ScalarType::Half, ScalarType::Double};
  imports.dtypes.clear();
  for (size_t i = 0; i < codes.size(); ++i) imports.dtypes.emplace_back(dtypes[i], codes[i]);
  // References are never released, because the module is not unloaded either.
  for (PyObject* object :
       {imports.handle_of, imports.tensors_of, imports.watchers, imports.forward_ad}) {
    Py_INCREF(object);
  }
  for (PyObject* dtype : dtypes) Py_INCREF(dtype);
  for (PyTypeObject* type : imports.plain_types) Py_INCREF(type);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS,
     "setup(Tensor, Parameter, handle_of, tensors_of, dtypes, watchers, forward_ad): stores the "
     "objects of torch that calls need."},
    {"state", as_method(state), METH_FASTCALL,
     "state(*tensors): the State of a call on these tensors; an entry may be None."},
    {"bind", bind, METH_VARARGS,
     "bind(name, kinds, results, fallback): returns a function that calls the op."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "op_call", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_op_call() { return PyModule_Create(&module); }
