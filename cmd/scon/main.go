// Go's runtime would look once a second whether a control group allows fewer CPUs, which
// wakes a thread in a service that is idle.
//
//go:debug updatemaxprocs=0

// Scon reduces the cost of a container's network to that of a native process.
//
// Each verb has its own file; root.go joins them.
package main

import "io"

// run runs the program with the given streams and returns its exit status.
func run(args []string, stdout, stderr io.Writer) int {
	return newTool(stdout, stderr).run(args)
}
