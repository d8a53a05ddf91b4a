// Lanes runs "go test -json" with its arguments for all packages of all modules, in
// concurrent lanes: most tests wait for timers and leases, so that a single lane leaves
// most of the processors idle. The packages that CONTRIBUTING.md lists as slow ("make
// slow") come first, in its order, so that what runs at the end is short. Each lane takes
// what is next, in a mount namespace of its own, and prints whole lines.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// lanes is how many run at once, on two processors.
const lanes = 3

// modules are the folders of the modules.
var modules = []string{".", "test", "lab"}

// work is some packages of a module, tested one after the other.
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
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		return err
	}
	all := map[string][]string{}
	for _, module := range modules {
		list, err := exec.Command("go", "list", "-C", module, "./...").Output()
		if err != nil {
			return fmt.Errorf("list the packages of module %s: %w", module, err)
		}
		all[module] = strings.Fields(string(list))
	}
	works := order(slow(string(text)), all)
	next := make(chan work, len(works))
	for _, w := range works {
		next <- w
	}
	close(next)

	var out output
	var errs [lanes]error
	var running sync.WaitGroup
	for i := range lanes {
		running.Go(func() {
			for w := range next {
				errs[i] = errors.Join(errs[i], out.test(args, w))
			}
		})
	}
	running.Wait()
	return errors.Join(errs[:]...)
}

var row = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| \\d+ \\|")

// slow returns the packages of the table, by what their paths end with.
func slow(contributing string) (names []string) {
	for _, found := range row.FindAllStringSubmatch(contributing, -1) {
		names = append(names, found[1])
	}
	return names
}

// order returns what is to be done: each slow package, then the others of each module.
func order(slow []string, all map[string][]string) (works []work) {
	others := map[string][]string{}
	for _, module := range modules {
		others[module] = slices.Clone(all[module])
	}
	for _, name := range slow {
		for _, module := range modules {
			i := slices.IndexFunc(others[module], func(pkg string) bool { return strings.HasSuffix(pkg, "/scon/"+name) })
			if i >= 0 {
				works = append(works, work{module, []string{others[module][i]}})
				others[module] = slices.Delete(others[module], i, i+1)
			}
		}
	}
	for _, module := range modules {
		if len(others[module]) > 0 { // "go test" without a package tests that of the folder
			works = append(works, work{module, others[module]})
		}
	}
	return works
}

// output is the standard output of all lanes.
type output struct {
	lock sync.Mutex
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
