package vm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The guest's init prints these lines: the command's output stands between the
// first two, the kernel's complaints between the last two.
const (
	outputMark = "\n=== output\n"
	exitMark   = "\n=== exit " // and the status
	endMark    = "\n=== end\n"
)

var errNoResult = errors.New("the guest ended without a result")

// parseConsole finds the result in what came over the console.
func parseConsole(console []byte) (Result, error) {
	text := strings.ReplaceAll(string(console), "\r\n", "\n")
	_, text, begun := strings.Cut(text, outputMark)
	// The command may print what looks like the end: the last one is it.
	end := strings.LastIndex(text, exitMark)
	if !begun || end < 0 {
		return Result{}, errNoResult
	}
	r := Result{Output: text[:end]}
	status, complaints, _ := strings.Cut(text[end+len(exitMark):], "\n")
	complaints, _, ended := strings.Cut("\n"+complaints, endMark)
	if !ended {
		return Result{}, errNoResult
	}
	r.Complaints = strings.TrimSpace(complaints)
	var err error
	if r.ExitCode, err = strconv.Atoi(status); err != nil {
		return Result{}, fmt.Errorf("reading the exit status: %w", err)
	}
	return r, nil
}
