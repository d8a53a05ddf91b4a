// Unpacked prints a directory of the cache with the files of packages of Debian 12, for
// scripts. It fetches them if they are missing, and installs nothing.
//
//	unpacked ARCH NAME PACKAGE...    ARCH as Debian calls it; NAME begins the directory's name
//
// Dependencies are not fetched. Where apt has no Debian mirror, the exit status is 3.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/scon-project/scon/test/bed/vm"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: unpacked ARCH NAME PACKAGE...")
		os.Exit(2)
	}
	dir, err := vm.Unpacked(context.Background(), os.Args[1], os.Args[2], os.Args[3:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "unpacked:", err)
		if errors.Is(err, vm.ErrNoMirror) {
			os.Exit(3)
		}
		os.Exit(1)
	}
	fmt.Println(dir)
}
