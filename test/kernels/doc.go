// Package kernels tests SCON on Debian's kernels, each in a guest of its own:
// those that hook devices by clsact and those that have tcx, and those without
// type information (BTF).
package kernels
