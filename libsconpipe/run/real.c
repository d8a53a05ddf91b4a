// SPDX-License-Identifier: GPL-2.0
#include <dlfcn.h>

#include "real.h"

struct real real_calls;
bool real_found;

void *real_symbol(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

void real_find(void)
{
#define REAL_FIND(type, name, args) \
	real_calls.name = (type(*) args)dlsym(RTLD_NEXT, #name);
	REAL_CALLS(REAL_FIND)
	real_found = true;
}
