//go:build !man

package main

import "os"

func main() { os.Exit(newTool(os.Stdout, os.Stderr).run(os.Args[1:])) }
