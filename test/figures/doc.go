// Package figures tests "scon bench figures" from end to end, with the programs
// scon and scon-lab.
package figures
