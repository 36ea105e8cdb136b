// FlatBuffers to Python values, as a layout says: one call, where the generated accessors take a dozen for each string.
#pragma once

#include <Python.h>

#include <cstdlib>

#include "flat.h"

// A layout has a letter for each field, in the order of the schema: I, Q, q, d for uint32, uint64, int64, double; s for a
// string, S for one that must be there; * for a vector of strings; [...] for a vector of tables; {n} for a vector of
// structs of n bytes; - for a field that is left out.
class Unpacker {
 public:
  Unpacker(const char *data, size_t size, size_t factor) : flat_(data, size, factor) {}

  // A tuple with a value for each field of the root; nullptr with an exception.
  PyObject *root(const char *layout) {
    size_t place;
    if (!flat_.follow(0, &place)) return refuse();
    return table(place, &layout, '\0');
  }

 private:
  PyObject *refuse() {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, flat_.error());
    return nullptr;
  }

  // Leaves *layout behind the character that ends the table's.
  PyObject *table(size_t place, const char **layout, char end) {
    FlatTable table;
    if (!table.open(&flat_, place)) return refuse();
    PyObject *values = PyList_New(0);
    for (size_t field = 0; values && **layout != end; field++) {
      size_t at;
      const char kind = *(*layout)++;
      PyObject *value = nullptr;
      if (!table.place(&flat_, field, &at)) {
        refuse();
      } else if (kind == '-') {
        continue;
      } else {
        value = this->value(kind, at, layout);
      }
      if (!value || PyList_Append(values, value) != 0) Py_CLEAR(values);
      Py_XDECREF(value);
    }
    if (!values) return nullptr;
    ++*layout;
    PyObject *result = PyList_AsTuple(values);
    Py_DECREF(values);
    return result;
  }

  PyObject *value(char kind, size_t at, const char **layout) {
    switch (kind) {
      case 'I':
        return number<uint32_t>(at, PyLong_FromUnsignedLongLong);
      case 'Q':
        return number<uint64_t>(at, PyLong_FromUnsignedLongLong);
      case 'q':
        return number<int64_t>(at, PyLong_FromLongLong);
      case 'd':
        return number<double>(at, PyFloat_FromDouble);
      case 's':
        return at ? string(at) : PyUnicode_FromStringAndSize("", 0);
      case 'S':
        if (!at) flat_.fail("a table lacks a field");
        return at ? string(at) : refuse();
      case '*':
        return strings(at);
      case '[':
        return tables(at, layout);
      case '{':
        return structs(at, layout);
    }
    return PyErr_Format(PyExc_ValueError, "the layout has the letter %c", kind);
  }

  template <typename T, typename Make>
  PyObject *number(size_t at, Make make) {
    T value{};
    return !at || flat_.get(at, &value) ? make(value) : refuse();
  }

  PyObject *string(size_t at) {
    Run run;
    if (!flat_.string(at, &run)) return refuse();
    return PyUnicode_DecodeUTF8(flat_.at(run.at), static_cast<Py_ssize_t>(run.count), nullptr);
  }

  // A list of what make gives for the place of each item of a vector of offsets.
  template <typename Make>
  PyObject *list(size_t at, Make make) {
    Run run;
    if (at && !flat_.vector(at, sizeof(uint32_t), &run)) return refuse();
    PyObject *out = PyList_New(static_cast<Py_ssize_t>(run.count));
    for (size_t i = 0; out && i < run.count; i++) {
      PyObject *item = make(run.at + i * sizeof(uint32_t));
      if (!item || PyList_SetItem(out, static_cast<Py_ssize_t>(i), item) != 0) Py_CLEAR(out);
    }
    return out;
  }

  PyObject *strings(size_t at) {
    return list(at, [this](size_t place) { return string(place); });
  }

  PyObject *tables(size_t at, const char **layout) {
    const char *inner = *layout;
    PyObject *out = list(at, [this, inner](size_t place) -> PyObject * {
      size_t start;
      const char *rest = inner;
      return flat_.follow(place, &start) ? table(start, &rest, ']') : refuse();
    });
    *layout = std::strchr(inner, ']') + 1;
    return out;
  }

  PyObject *structs(size_t at, const char **layout) {
    char *end;
    const size_t size = std::strtoul(*layout, &end, 10);
    *layout = end + 1;
    Run run;
    if (at && !flat_.vector(at, size, &run)) return refuse();
    return PyBytes_FromStringAndSize(flat_.at(run.at), static_cast<Py_ssize_t>(run.count * size));
  }

  Flat flat_;
};

// Whether it is as Unpacker says: brackets are closed and not nested, and sizes are there.
inline bool is_layout(const char *layout) {
  bool inside = false;
  for (const char *c = layout; *c; c++) {
    if (*c == '{') {
      char *end;
      const unsigned long size = std::strtoul(c + 1, &end, 10);
      if (inside || size < 1 || size > 1024 || *end != '}') return false;
      c = end;
    } else if (*c == '[' || *c == ']') {
      if (inside != (*c == ']')) return false;
      inside = !inside;
    } else if (!std::strchr(inside ? "IQqdsS-" : "IQqdsS*-", *c)) {
      return false;
    }
  }
  return !inside;
}

inline PyObject *unpack(PyObject *, PyObject *args) {
  PyObject *data;
  const char *layout;
  Py_ssize_t factor;
  char *bytes;
  Py_ssize_t nbytes;
  if (!PyArg_ParseTuple(args, "Osn:unpack", &data, &layout, &factor)) return nullptr;
  if (PyBytes_AsStringAndSize(data, &bytes, &nbytes) != 0) return nullptr;
  if (!is_layout(layout) || factor < 1 || factor > 1024) {
    return PyErr_Format(PyExc_ValueError, "no layout, or no factor: %s, %zd", layout, factor);
  }
  return Unpacker(bytes, static_cast<size_t>(nbytes), static_cast<size_t>(factor)).root(layout);
}
