// Package helper generates load and draws plots for package figures, in a process
// of its own.
package helper

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/lab/startbench/launch"
)

// memoryLimit of a load generator. Below it the generator collects no garbage,
// since a collection would show in the latencies.
const memoryLimit = 256 << 20

// Main executes the order on standard input. The first argument is its verb. Main
// returns the exit status.
func Main(args []string) int {
	if err := carryOut(args, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "scon:", err)
		return 1
	}
	return 0
}

func carryOut(args []string, in io.Reader, out io.Writer) error {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	verbs := map[string]func(*json.Decoder, *json.Encoder) error{
		"http":      verb(loadHTTP),
		"publish":   verb(publish),
		"subscribe": verb(subscribe),
		"draw":      verb(drawAll),
		"plot":      verb(plotAll),
		"startup":   launch.Serve,
	}
	if len(args) == 1 && verbs[args[0]] != nil {
		return verbs[args[0]](json.NewDecoder(in), json.NewEncoder(out))
	}
	return fmt.Errorf("%q: want http, publish, subscribe, draw, plot or startup", args)
}

// verb reads an order, executes it and writes the report. carryOut may write other
// reports before.
func verb[Order any](carryOut func(Order, *json.Encoder) (figures.Report, error)) func(*json.Decoder, *json.Encoder) error {
	return func(in *json.Decoder, out *json.Encoder) error {
		var order Order
		if err := in.Decode(&order); err != nil {
			return fmt.Errorf("read the order: %w", err)
		}
		report, err := carryOut(order, out)
		if err != nil {
			return err
		}
		return out.Encode(report)
	}
}

// clock reads a clock of the kernel; CLOCK_MONOTONIC is the same in all processes.
func clock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(err) // every kernel has these clocks
	}
	return time.Duration(t.Nano())
}

func processTime() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }
