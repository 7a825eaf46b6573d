/* Declares attention's softmax and LayerNorm on plain arrays in C, without C++, Python or torch.
 *
 * Two libraries export these functions. libfusedops_c works on host memory; its streams are NULL,
 * and a call returns when the results are complete. libfusedops_c_cuda works on memory of the
 * current CUDA device; a stream is a cudaStream_t, and a call returns once the work is queued.
 * A program that needs both opens them with dlopen.
 *
 * Arrays are float32, contiguous and row-major, and start at a multiple of 4 bytes. They do not
 * overlap unless a function says so. Sizes may be 0 unless a function says otherwise. A call that
 * fails has written nothing, except that results are undefined after FUSEDOPS_OUT_OF_MEMORY and
 * FUSEDOPS_DEVICE_ERROR.
 *
 * The results of a row always have the same bits: in any batch, with any number of threads, and in
 * every call. CPU threads are OpenMP's (OMP_NUM_THREADS). Several threads may call these functions
 * at once.
 *
 * Names, shapes and the order of arguments are those of LightSeq's launchers (Wang et al., 2021),
 * https://github.com/bytedance/lightseq.
 */
#ifndef FUSEDOPS_C_API_H
#define FUSEDOPS_C_API_H

#include <stdbool.h>

#define FUSEDOPS_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fusedops_status {
  FUSEDOPS_SUCCESS = 0,
  FUSEDOPS_INVALID_POINTER = 1,     /* NULL, or not aligned for floats */
  FUSEDOPS_INVALID_SIZE = 2,        /* negative, too small, or more elements than memory can hold */
  FUSEDOPS_INVALID_EPS = 3,         /* negative, infinite or NaN */
  FUSEDOPS_INVALID_STREAM = 4,      /* not NULL on the CPU, or two streams that differ */
  FUSEDOPS_INVALID_ENVIRONMENT = 5, /* FUSEDOPS_CPU_ISA names no instruction set that can be used */
  FUSEDOPS_OUT_OF_MEMORY = 6,
  FUSEDOPS_DEVICE_ERROR = 7 /* an error of CUDA */
} fusedops_status;

/* Returns the version, such as "1.2.3". */
FUSEDOPS_API const char* fusedops_version(void);

/* Returns a description of a status code, in words. */
FUSEDOPS_API const char* fusedops_status_string(fusedops_status status);

/* Describes the last failed call of this thread: the function, the argument, its value and what was
 * wanted. The string is empty if no call has failed, and valid until the thread's next failed
 * call. */
FUSEDOPS_API const char* fusedops_last_error(void);

/* Computes attention's probabilities in place: inp = softmax(inp + attn_mask) over the last
 * dimension.
 *
 * inp: [batch_size, nhead, from_len, to_len]
 * attn_mask: [batch_size, to_len], added to every row of a batch entry (0 where a key is visible,
 *   -inf or a large negative number where it is not), or NULL
 * mask_future: whether query i sees only keys 0 to i
 *
 * A row becomes 0 if no key is visible or all its values are -inf. */
FUSEDOPS_API fusedops_status fusedops_attn_softmax(
    float* inp, const float* attn_mask, int batch_size, int nhead, int from_len, int to_len,
    bool mask_future, void* stream);

/* Computes the gradient of fusedops_attn_softmax, in place:
 * out_grad = soft_inp * (out_grad - sum(out_grad * soft_inp)).
 *
 * out_grad, soft_inp: [rows, softmax_len]; soft_inp is the result of fusedops_attn_softmax. */
FUSEDOPS_API fusedops_status fusedops_attn_softmax_bw(
    float* out_grad, const float* soft_inp, int rows, int softmax_len, void* stream);

/* Computes ln_res = (inp - mean) / sqrt(variance + eps) * scale + bias, row by row.
 *
 * ln_res, inp: [batch_size, hidden_dim], hidden_dim at least 1
 * vars, means: [batch_size], written for the gradient: variance + eps, and the mean
 * scale, bias: [hidden_dim]
 * eps: finite, at least 0 */
FUSEDOPS_API fusedops_status fusedops_layernorm(
    float* ln_res, float* vars, float* means, const float* inp, const float* scale,
    const float* bias, int batch_size, int hidden_dim, float eps, void* stream);

/* Computes the gradients of fusedops_layernorm. With x = (inp - means) / sqrt(vars) and
 * g = out_grad * gamma, row by row inp_grad = (g - (sum(g) + x * sum(g * x)) / hidden_dim) /
 * sqrt(vars), and over the rows gamma_grad = sum(out_grad * x), betta_grad = sum(out_grad).
 *
 * inp_grad, out_grad, inp: [batch_size, hidden_dim]; inp_grad is NULL if it is not wanted
 * gamma_grad, betta_grad, gamma: [hidden_dim]; a gradient is NULL if it is not wanted
 * vars, means: [batch_size], the results of fusedops_layernorm */
FUSEDOPS_API fusedops_status fusedops_layernorm_bw(
    float* gamma_grad, float* betta_grad, float* inp_grad, const float* out_grad, const float* inp,
    const float* gamma, const float* vars, const float* means, int batch_size, int hidden_dim,
    void* stream);

/* These functions do the same as those above. They have the names and arguments that existing
 * bindings call (docs/c_interface.md). eps is 1e-8, betta is not read, and both streams must be the
 * same. */
FUSEDOPS_API fusedops_status launch_attn_softmax(
    float* inp, const float* attn_mask, int batch_size, int nhead, int from_len, int to_len,
    bool mask_future, void* stream);
FUSEDOPS_API fusedops_status launch_attn_softmax_bw(
    float* out_grad, const float* soft_inp, int rows, int softmax_len, void* stream);
FUSEDOPS_API fusedops_status launch_layernorm(
    float* ln_res, float* vars, float* means, const float* inp, const float* scale,
    const float* bias, int batch_size, int hidden_dim, void* stream);
FUSEDOPS_API fusedops_status launch_layernorm_bw(
    float* gamma_grad, float* betta_grad, float* inp_grad, const float* out_grad, const float* inp,
    const float* gamma, const float* betta, const float* vars, const float* means, int batch_size,
    int hidden_dim, void* stream_1, void* stream_2);

#ifdef __cplusplus
}
#endif

#endif
