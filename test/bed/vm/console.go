package vm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Lines that the guest's init prints. The command's output is between the first two,
// the kernel's warnings between the last two.
const (
	outputMark = "\n=== output\n"
	exitMark   = "\n=== exit " // followed by the status
	endMark    = "\n=== end\n"
)

var errNoResult = errors.New("the guest ended without a result")

// parseConsole parses the result from the console's output.
func parseConsole(console []byte) (Result, error) {
	text := strings.ReplaceAll(string(console), "\r\n", "\n")
	_, text, begun := strings.Cut(text, outputMark)
	// The command may print the same line: the last one counts.
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
		return Result{}, fmt.Errorf("read the exit status: %w", err)
	}
	return r, nil
}
