// Scon makes a container's network cost what a native process's costs.
//
// One file per verb; root.go is the frame they stand in.
package main

import (
	"io"
	"os"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program without its process, and returns its exit status.
func run(args []string, stdout, stderr io.Writer) int {
	return newTool(stdout, stderr).run(args)
}
