package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newRunCommand() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a program whose TCP connections go over to the pipe",
		Long: `Run a program whose TCP connections go over to the pipe.

A connection goes over when both its ends' programs run so, on this machine, and
the pipe's broker runs: pipe.enabled in the configuration. All others stay what
they are. docs/run.md says what works, and how a container does it. A program that
nothing can be preloaded into runs as well, after a line on stderr that says why.

SCON_PIPE_SOCKET names the pipe's socket, where it is not the usual one.`,
		Example: `  scon run -- iperf3 -s
  scon run -- iperf3 -c 172.17.0.2`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef(cmd, "takes a command, as in: scon run -- iperf3 -s")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return t.runPiped(args, verbose) },
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "say on stderr if all connections will stay TCP's")
	return cmd
}

// runPiped replaces this process by a program with the library that takes its
// connections over.
func (t *tool) runPiped(args []string, verbose bool) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("find %q: %w", args[0], errors.Unwrap(err))
	}
	machine, err := preloadable(path)
	if reason := (staysTCP{}); errors.As(err, &reason) {
		fmt.Fprintf(t.stderr, "scon: all connections stay TCP's: %v\n", reason)
		return execute(path, args)
	}
	if err != nil {
		return err
	}
	library, err := findRunLibrary(machine)
	if err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	if verbose {
		if err := pipeAnswers(); err != nil {
			fmt.Fprintf(t.stderr, "scon: all connections stay TCP's: %v\n", err)
		}
	}
	preload := library
	if already := os.Getenv("LD_PRELOAD"); already != "" {
		preload += ":" + already
	}
	if err := os.Setenv("LD_PRELOAD", preload); err != nil {
		return err
	}
	return execute(path, args)
}

// execute returns only if that is not possible.
func execute(path string, args []string) error {
	return fmt.Errorf("execute %s: %w", path, unix.Exec(path, args, os.Environ()))
}

// staysTCP says why preloading into a program is of no use: it runs as it is.
type staysTCP struct{ reason string }

func (e staysTCP) Error() string { return e.reason }

// pipeAnswers says whether there is a broker.
func pipeAnswers() error {
	socket := os.Getenv("SCON_PIPE_SOCKET")
	if socket == "" {
		socket = pipe.Socket(state.DefaultDir)
	}
	conn, err := net.Dial("unixpacket", socket)
	if err != nil {
		return fmt.Errorf("no pipe broker answers at %s; set pipe.enabled in the configuration, then start it with 'scon up': %w", cli.Printable(socket), err)
	}
	return conn.Close()
}

// mostInterpreters is how many scripts the kernel lets name each other.
const mostInterpreters = 4

// preloadable checks that the loader will preload into a program, and returns
// the machine that it is for. Where it will not, the error is a staysTCP.
func preloadable(path string) (elf.Machine, error) {
	for range mostInterpreters {
		if err := ownRights(path); err != nil {
			return 0, err
		}
		interpreter, err := interpreterOf(path)
		if err != nil {
			return 0, err
		}
		if interpreter == "" {
			return linked(path)
		}
		path = interpreter
	}
	return 0, fmt.Errorf("%s: too many scripts name each other as interpreters", cli.Printable(path))
}

// ownRights finds programs that run with more rights than their caller: the
// loader ignores what the caller wants preloaded.
func ownRights(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look at a program: %w", err)
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return staysTCP{cli.Printable(path) + " is setuid or setgid: the loader preloads nothing into it"}
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 {
		return staysTCP{cli.Printable(path) + " has file capabilities: the loader preloads nothing into it"}
	}
	return nil
}

// interpreterOf a script; "" for what is none.
func interpreterOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("look at a program: %w", err)
	}
	defer f.Close()
	head := make([]byte, 256)
	n, err := f.Read(head)
	if err != nil {
		return "", fmt.Errorf("look at %s: %w", cli.Printable(path), err)
	}
	line, isScript := bytes.CutPrefix(head[:n], []byte("#!"))
	if !isScript {
		return "", nil
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return "", fmt.Errorf("%s is a script that names no interpreter", cli.Printable(path))
	}
	if filepath.Base(words[0]) == "env" && len(words) > 1 && !strings.HasPrefix(words[1], "-") {
		found, err := exec.LookPath(words[1])
		if err != nil {
			return "", fmt.Errorf("find %q, which %s names: %w", words[1], cli.Printable(path), errors.Unwrap(err))
		}
		return found, nil
	}
	return words[0], nil
}

// linked checks that a program has a loader and calls the C library, and returns
// its machine.
func linked(path string) (elf.Machine, error) {
	f, err := elf.Open(path)
	if err != nil {
		return 0, fmt.Errorf("%s is no program: %w", cli.Printable(path), err)
	}
	defer f.Close()
	// Go's linker writes this section. Package debug/buildinfo would link readers of
	// the formats of other systems.
	if f.Section(".go.buildinfo") != nil {
		return 0, staysTCP{cli.Printable(path) + " is written in Go: it makes its own system calls"}
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return f.Machine, nil
		}
	}
	return 0, staysTCP{cli.Printable(path) + " is statically linked: nothing can be preloaded into it"}
}

// findRunLibrary finds libsconrun.so beside this program, or where "make
// install" and packages put it.
func findRunLibrary(machine elf.Machine) (string, error) {
	const name = "libsconrun.so"
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, path := range []string{filepath.Join(dir, name), filepath.Join(dir, "../lib", name), "/usr/local/lib/" + name, "/usr/lib/" + name} {
		f, err := elf.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("look at %s: %w", cli.Printable(path), err)
		}
		f.Close()
		if f.Machine != machine {
			return "", fmt.Errorf("it is for %v, %s for %v", machine, cli.Printable(path), f.Machine)
		}
		if strings.ContainsAny(path, " :") {
			return "", fmt.Errorf("%s: the loader takes no path with spaces or colons", cli.Printable(path))
		}
		return path, nil
	}
	return "", fmt.Errorf("%s is neither beside %s nor installed: \"make install\" does that", name, cli.Printable(self))
}
