package startbench

import "github.com/scon-project/scon/internal/bench"

// Draw draws the plots of a result into a folder.
func Draw(r *bench.Result, dir string) error { return nil }
