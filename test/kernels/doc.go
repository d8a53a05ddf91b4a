// Package kernels tests SCON on Debian's kernels, each in a guest of its own: with
// clsact, with tcx, and without type information (BTF).
package kernels
