//go:build race

package daemon_test

// raced: the race detector multiplies the memory that the daemon takes.
const raced = true
