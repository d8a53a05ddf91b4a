// Package figures tests "scon bench figures" from end to end, with the programs
// scon and scon-bench.
package figures
