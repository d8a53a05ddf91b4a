// SPDX-License-Identifier: GPL-2.0
// clang-format off
//go:build cgo
// clang-format on

#include "../src/listed.c"
