/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Calls of the CUDA driver API, which are loaded from libcuda.so.1 at run time: a build
 * needs neither CUDA nor a GPU. Names and types are those of the driver API.
 */
#ifndef DRIVER_H
#define DRIVER_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_NOT_READY = 600,
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_MEMHOSTREGISTER_READ_ONLY = 8,
};

#define DRIVER_CALLS(X)                                                                  \
	X(cuInit, "cuInit", (unsigned int))                                              \
	X(cuGetErrorName, "cuGetErrorName", (CUresult, const char **))                   \
	X(cuDeviceGet, "cuDeviceGet", (CUdevice *, int))                                 \
	X(cuDeviceGetName, "cuDeviceGetName", (char *, int, CUdevice))                   \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice)) \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                               \
	X(cuMemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned int))     \
	X(cuMemHostUnregister, "cuMemHostUnregister", (void *))                          \
	X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                          \
	X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                     \
	  (CUdeviceptr, const void *, size_t, CUstream))                                 \
	X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2",                                     \
	  (void *, CUdeviceptr, size_t, CUstream))                                       \
	X(cuStreamCreate, "cuStreamCreate", (CUstream *, unsigned int))                  \
	X(cuEventCreate, "cuEventCreate", (CUevent *, unsigned int))                     \
	X(cuEventRecord, "cuEventRecord", (CUevent, CUstream))                           \
	X(cuEventQuery, "cuEventQuery", (CUevent))

#define DRIVER_DECLARE(call, symbol, args) extern CUresult(*call) args;
DRIVER_CALLS(DRIVER_DECLARE)

/* driver_open loads the library, selects the first device and returns its name. On an
 * error it prints a message and exits. */
const char *driver_open(void);

/* must prints a message and exits unless result is CUDA_SUCCESS. */
void must(const char *what, CUresult result);

#endif
