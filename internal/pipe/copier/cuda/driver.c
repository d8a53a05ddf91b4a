// SPDX-License-Identifier: GPL-2.0
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

#define LIBRARY "libcuda.so.1"

#define DRIVER_DEFINE(call, symbol, args) CUresult(*call) args;
DRIVER_CALLS(DRIVER_DEFINE)

void must(const char *what, CUresult result)
{
	const char *name = NULL;

	if (result == CUDA_SUCCESS)
		return;
	cuGetErrorName(result, &name);
	fprintf(stderr, "%s: %s (%d)\n", what, name ? name : "unknown error", result);
	exit(1);
}

static void *find(void *library, const char *symbol)
{
	void *at = dlsym(library, symbol);

	if (!at) {
		fprintf(stderr, "%s has no %s\n", LIBRARY, symbol);
		exit(1);
	}
	return at;
}

const char *driver_open(void)
{
	static char name[128];
	void *library = dlopen(LIBRARY, RTLD_NOW);
	CUcontext context;
	CUdevice device;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
#define DRIVER_FIND(call, symbol, args) *(void **)&call = find(library, symbol);
	DRIVER_CALLS(DRIVER_FIND)
	must("start the driver", cuInit(0));
	must("find a device", cuDeviceGet(&device, 0));
	must("read a device's name", cuDeviceGetName(name, sizeof(name), device));
	must("use a device", cuDevicePrimaryCtxRetain(&context, device));
	must("use a device", cuCtxSetCurrent(context));
	return name;
}
