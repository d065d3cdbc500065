/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for libcudart where there is no GPU: device memory is host memory, streams do everything at once.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STUB_API __attribute__((visibility("default")))

STUB_API int paraletGpuStub = 1;

typedef int cudaError_t;
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorNoDevice = 100, cudaErrorNotReady = 600 };

static int device_count(void) {
  const char* count = getenv("PARALET_STUB_GPUS");
  return count == NULL ? 1 : atoi(count);
}

STUB_API cudaError_t cudaDriverGetVersion(int* version) {
  const char* driver = getenv("PARALET_STUB_CUDA_DRIVER");
  *version = driver == NULL ? 13000 : atoi(driver);
  return cudaSuccess;
}

STUB_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

STUB_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

STUB_API cudaError_t cudaGetDeviceProperties(void* properties, int device) {
  (void)device;
  strcpy(properties, "no GPU (stub)"); /* the name is the first field */
  return cudaSuccess;
}

STUB_API cudaError_t cudaSetDevice(int device) {
  return device >= 0 && device < device_count() ? cudaSuccess : cudaErrorNoDevice;
}

STUB_API cudaError_t cudaMalloc(void** memory, size_t size) {
  *memory = NULL;
  return posix_memalign(memory, 512, size) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}

STUB_API cudaError_t cudaFree(void* memory) {
  free(memory);
  return cudaSuccess;
}

STUB_API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, int kind) {
  (void)kind;
  memcpy(to, from, size);
  return cudaSuccess;
}

STUB_API cudaError_t cudaMemsetAsync(void* memory, int value, size_t size, void* stream) {
  (void)stream;
  memset(memory, value, size);
  return cudaSuccess;
}

STUB_API cudaError_t cudaStreamCreate(void** stream) {
  *stream = malloc(1);
  return cudaSuccess;
}

STUB_API cudaError_t cudaStreamQuery(void* stream) {
  (void)stream;
  const char* fault = getenv("PARALET_STUB_FAULT"); /* a network that fails leaves the stream waiting for ever */
  return fault != NULL && strcmp(fault, "async-error") == 0 ? cudaErrorNotReady : cudaSuccess;
}

STUB_API cudaError_t cudaStreamDestroy(void* stream) {
  free(stream);
  return cudaSuccess;
}

STUB_API cudaError_t cudaEventCreate(void** event) {
  *event = calloc(1, sizeof(struct timespec));
  return cudaSuccess;
}

STUB_API cudaError_t cudaEventRecord(void* event, void* stream) {
  (void)stream;
  clock_gettime(CLOCK_MONOTONIC, event);
  return cudaSuccess;
}

STUB_API cudaError_t cudaEventElapsedTime(float* milliseconds, const void* start, const void* end) {
  const struct timespec *a = start, *b = end;
  *milliseconds = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) / 1e6);
  return cudaSuccess;
}

STUB_API cudaError_t cudaEventDestroy(void* event) {
  free(event);
  return cudaSuccess;
}

STUB_API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    default:
      return "an error of the stub";
  }
}
