// scon-bench generates load and draws for "scon bench figures", which runs it.
package main

import (
	"os"

	"github.com/scon-project/scon/internal/lab/figures/helper"
)

func main() {
	os.Exit(helper.Main(os.Args[1:]))
}
