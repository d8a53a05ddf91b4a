// Package kernels tests SCON on Debian's kernels, each in its own guest: with clsact,
// with tcx, and without type information (BTF).
package kernels
