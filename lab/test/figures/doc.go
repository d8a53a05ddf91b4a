// Package figures tests experiments of "scon bench" from end to end, with the programs
// scon and scon-lab.
package figures
