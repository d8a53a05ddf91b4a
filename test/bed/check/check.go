// Package check compares values, and looks for goroutines that a test leaves.
package check

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// prefixes makes values without exported fields comparable.
var prefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// Diff returns how two values differ, in lines that begin with - for want and + for got; "" if
// they are equal.
func Diff(want, got any) string { return cmp.Diff(want, got, prefixes) }

// Main runs a package's tests, and fails if they leave goroutines.
func Main(m *testing.M) { goleak.VerifyTestMain(m) }

// Leaks returns an error with the goroutines that are left.
func Leaks() error { return goleak.Find() }
