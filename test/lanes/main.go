// Lanes runs "go test -json" with its arguments, in concurrent lanes: most tests wait
// for timers and leases, so that a single lane leaves most of the processors idle.
// Each lane has its own mount namespace, runs its packages one after the other, and
// prints whole lines.
//
//	lanes ARG... ./...              all packages of all modules
//	lanes ARG... ./... PACKAGE      one package, as gotestsum reruns tests: one lane
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// lanes are the packages of the lanes, by what their paths begin with, each about as long
// as the others ("make slow"). All other packages are in the last lane.
var lanes = [...][]string{
	{"internal/express/", "test/faults/", "test/pitfalls/"},
	{"cmd/", "internal/pipe/", "internal/startup/docker/", "lab/", "libsconpipe/", "test/differential/", "test/packages/"},
	{""},
}

// modules are the folders of the modules.
var modules = []string{".", "test", "lab"}

// work is some packages of a module.
type work struct {
	module   string
	packages []string
}

func main() {
	err := run(os.Args[1:])
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		os.Exit(failed.ExitCode()) // its events say why; gotestsum takes a word on stderr for a broken run
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lanes:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	args, pkg := parse(args)
	if pkg != "" {
		return (&output{}).lane(args, []work{{moduleOf(pkg), []string{pkg}}})
	}
	var all [len(lanes)][]work
	for _, module := range modules {
		list, err := exec.Command("go", "list", "-C", module, "./...").Output()
		if err != nil {
			return fmt.Errorf("list the packages of module %s: %w", module, err)
		}
		var packages [len(lanes)][]string
		for _, pkg := range strings.Fields(string(list)) {
			i := laneOf(pkg)
			packages[i] = append(packages[i], pkg)
		}
		for i, some := range packages {
			if len(some) > 0 {
				all[i] = append(all[i], work{module, some})
			}
		}
	}
	var out output
	var errs [len(lanes)]error
	var running sync.WaitGroup
	for i, lane := range all {
		running.Go(func() { errs[i] = out.lane(args, lane) })
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// parse returns the arguments for "go test", and the package to test; "": all.
func parse(args []string) (flags []string, pkg string) {
	const all = "./..."
	last := len(args) - 1
	if args[last] != all {
		args, pkg = args[:last], args[last]
	}
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == all }), pkg
}

// laneOf returns the number of a package's lane.
func laneOf(pkg string) int {
	return slices.IndexFunc(lanes[:], func(lane []string) bool {
		return slices.ContainsFunc(lane, func(prefix string) bool { return strings.Contains(pkg+"/", "/scon/"+prefix) })
	})
}

// moduleOf returns the module that a package is in.
func moduleOf(pkg string) string {
	for _, module := range modules {
		if strings.Contains(pkg, "/scon/"+module+"/") {
			return module
		}
	}
	return "."
}

// output is the standard output of all lanes.
type output struct {
	lock sync.Mutex
}

// lane runs the tests of some packages, one after the other, and returns the last error.
func (o *output) lane(args []string, all []work) (err error) {
	for _, w := range all {
		if runErr := o.test(args, w); runErr != nil {
			err = runErr
		}
	}
	return err
}

func (o *output) test(args []string, w work) error {
	cmd := exec.Command("scripts/with-own-mounts.sh", slices.Concat([]string{"go", "test", "-C", w.module, "-json", "-p", "1"}, args, w.packages)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	reader := bufio.NewReader(events)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 0 {
			o.write(line)
		}
		if err != nil {
			break
		}
	}
	return cmd.Wait()
}

func (o *output) write(line []byte) {
	o.lock.Lock()
	defer o.lock.Unlock()
	os.Stdout.Write(append(bytes.TrimRight(line, "\n"), '\n'))
}
