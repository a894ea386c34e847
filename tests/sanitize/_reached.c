/* The table of what an input has reached, and a tracer that notes lines of Python in it.
 *
 *     begin()      forget what the last input has reached, and note from now on
 *     end()        stop; how many edges were reached, or reached as often, as by no input before
 *     edges()      how many edges were reached by all inputs together
 *     compared()   pairs of values that differed where they were compared, and their size in bytes
 *     trace(text)  note lines of Python too, of files whose path has this text; "" for none
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "reached.h"

#define CODES (1u << 14)

__attribute__((visibility("default"))) Reached forelog_reached;

static uint8_t seen[REACHED_EDGES]; /* a bit for each order of magnitude of how often an edge was reached */
static uint32_t edge_count;
static char wanted[256];

typedef struct {
    PyCodeObject *code; /* kept, so that no other one gets its address */
    uint32_t name;      /* the same in each process; 0 for one that isn't wanted */
} Known;

static Known known[CODES];
static uint32_t known_count;

static uint32_t name_of(PyCodeObject *code) {
    const char *path = PyUnicode_AsUTF8(code->co_filename), *name = PyUnicode_AsUTF8(code->co_qualname), *found;
    uint32_t hash = 2166136261u;
    if (path == NULL || name == NULL) {
        PyErr_Clear();
        return 0;
    }
    found = strstr(path, wanted);
    if (found == NULL) return 0;
    for (; *found; found++) hash = (hash ^ (unsigned char)*found) * 16777619u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash | 1;
}

static uint32_t lookup(PyCodeObject *code) {
    uint32_t at = (uint32_t)(((uintptr_t)code >> 4) * 2654435761u) & (CODES - 1);
    while (known[at].code != NULL) {
        if (known[at].code == code) return known[at].name;
        at = (at + 1) & (CODES - 1);
    }
    if (known_count >= CODES / 2) return 0;
    known_count++;
    Py_INCREF(code);
    known[at].code = code;
    return known[at].name = name_of(code);
}

static int tracer(PyObject *self, PyFrameObject *frame, int what, PyObject *arg) {
    PyCodeObject *code;
    uint32_t name;
    (void)self, (void)arg;
    if (!forelog_reached.on || (what != PyTrace_CALL && what != PyTrace_LINE)) return 0;
    code = PyFrame_GetCode(frame);
    name = lookup(code);
    Py_DECREF(code);
    if (name) {
        reach(&forelog_reached, ((uint64_t)name << 20) + (uint64_t)PyFrame_GetLasti(frame) + 1);
    } else if (what == PyTrace_CALL) {
        return PyObject_SetAttrString((PyObject *)frame, "f_trace_lines", Py_False);
    }
    return 0;
}

static PyObject *py_begin(PyObject *self, PyObject *none) {
    Reached *reached = &forelog_reached;
    (void)self, (void)none;
    for (uint32_t i = 0; i < reached->touched_count; i++) reached->counts[reached->touched[i]] = 0;
    reached->touched_count = reached->compared_count = reached->before = 0;
    if (wanted[0]) PyEval_SetTrace(tracer, NULL);
    reached->on = 1;
    Py_RETURN_NONE;
}

static uint8_t magnitude(uint8_t count) {
    return count < 4 ? (uint8_t)(1 << (count - 1)) : count < 8 ? 8 : count < 16 ? 16 : count < 32 ? 32 : count < 128 ? 64 : 128;
}

static PyObject *py_end(PyObject *self, PyObject *none) {
    Reached *reached = &forelog_reached;
    long fresh = 0;
    (void)self, (void)none;
    reached->on = 0;
    if (wanted[0]) PyEval_SetTrace(NULL, NULL);
    for (uint32_t i = 0; i < reached->touched_count; i++) {
        uint32_t edge = reached->touched[i];
        uint8_t bit = magnitude(reached->counts[edge]);
        if (seen[edge] & bit) continue;
        if (!seen[edge]) edge_count++;
        seen[edge] |= bit;
        fresh++;
    }
    return PyLong_FromLong(fresh);
}

static PyObject *py_edges(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromUnsignedLong(edge_count);
}

static PyObject *py_compared(PyObject *self, PyObject *none) {
    Reached *reached = &forelog_reached;
    uint32_t count = reached->compared_count < REACHED_COMPARED ? reached->compared_count : REACHED_COMPARED;
    PyObject *found = PyList_New(0);
    (void)self, (void)none;
    for (uint32_t i = 0; found != NULL && i < count; i++) {
        Compared *one = &reached->compared[i];
        PyObject *triple = Py_BuildValue("(KKI)", one->left, one->right, one->bytes);
        if (triple == NULL || PyList_Append(found, triple)) Py_CLEAR(found);
        Py_XDECREF(triple);
    }
    return found;
}

static PyObject *py_trace(PyObject *self, PyObject *text) {
    const char *given = PyUnicode_AsUTF8(text);
    (void)self;
    if (given == NULL) return NULL;
    if (strlen(given) >= sizeof(wanted)) {
        PyErr_SetString(PyExc_ValueError, "that is too long");
        return NULL;
    }
    strcpy(wanted, given);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"begin", py_begin, METH_NOARGS, "Note what is reached from now on."},
    {"end", py_end, METH_NOARGS, "Stop; how many edges were reached as by no input before."},
    {"edges", py_edges, METH_NOARGS, "How many edges all inputs have reached."},
    {"compared", py_compared, METH_NOARGS, "Values that differed where they were compared."},
    {"trace", py_trace, METH_O, "Note lines of Python too, of files whose path has this text."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_reached", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reached(void) { return PyModule_Create(&module); }
