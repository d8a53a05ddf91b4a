package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/host/programs"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newRunCommand() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a program with its TCP connections on the pipe",
		Long: `Run a program with its TCP connections on the pipe.

A connection moves to the pipe if the programs of both ends run under 'scon run' on
this machine and the pipe's broker runs (pipe.enabled in the configuration). All
other connections stay on TCP. docs/run.md lists what is supported, and how to use
it in a container. A program that the library cannot be preloaded into runs on TCP;
a line on stderr says why.

SCON_PIPE_SOCKET names the pipe's socket if it is not the default one.`,
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
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print on stderr why all connections stay on TCP")
	return cmd
}

// runPiped replaces this process by a program with the library preloaded that
// moves its connections to the pipe.
func (t *tool) runPiped(args []string, verbose bool) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("find %q: %w", args[0], errors.Unwrap(err))
	}
	program, err := preloadable(path)
	if reason := (staysTCP{}); errors.As(err, &reason) {
		fmt.Fprintf(t.stderr, "scon: all connections stay on TCP: %v\n", reason)
		return execute(path, args)
	}
	if err != nil {
		return err
	}
	library, err := findRunLibrary(program)
	if err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	if err := pipeAnswers(); err != nil {
		if verbose || errors.Is(err, pipe.ErrReplaceable) {
			fmt.Fprintf(t.stderr, "scon: all connections stay on TCP: %v\n", err)
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

// execute returns only on error.
func execute(path string, args []string) error {
	return fmt.Errorf("execute %s: %w", path, unix.Exec(path, args, os.Environ()))
}

// staysTCP is the reason why the library cannot be preloaded into a program. The
// program runs without it.
type staysTCP struct{ reason string }

func (e staysTCP) Error() string { return e.reason }

// pipeAnswers checks that a broker answers.
func pipeAnswers() error {
	socket := os.Getenv("SCON_PIPE_SOCKET")
	if socket == "" {
		socket = pipe.Socket(state.DefaultDir)
	}
	if err := pipe.CheckDir(socket); err != nil {
		return err
	}
	conn, err := net.Dial("unixpacket", socket)
	if err != nil {
		return fmt.Errorf("no pipe broker answers at %s; set pipe.enabled in the configuration, then start it with 'scon up': %w", plain.Text(socket), err)
	}
	return conn.Close()
}

// mostInterpreters is how deep the kernel lets scripts name scripts as interpreters.
const mostInterpreters = 4

// loaded is a program that a loader starts.
type loaded struct {
	machine elf.Machine
	musl    bool // else the GNU C library
}

// preloadable checks that the loader preloads libraries into a program. If it does not,
// the error is a staysTCP.
func preloadable(path string) (loaded, error) {
	for range mostInterpreters {
		if err := ownRights(path); err != nil {
			return loaded{}, err
		}
		interpreter, err := interpreterOf(path)
		if err != nil {
			return loaded{}, err
		}
		if interpreter == "" {
			return linked(path)
		}
		path = interpreter
	}
	return loaded{}, fmt.Errorf("%s: too many scripts name each other as interpreters", plain.Text(path))
}

// ownRights rejects programs that run with more rights than their caller: the
// loader ignores the caller's LD_PRELOAD for them.
func ownRights(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("inspect a program: %w", err)
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return staysTCP{plain.Text(path) + " is setuid or setgid: the loader preloads nothing into it"}
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 {
		return staysTCP{plain.Text(path) + " has file capabilities: the loader preloads nothing into it"}
	}
	return nil
}

// interpreterOf returns the interpreter of a script, "" for any other file.
func interpreterOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("inspect a program: %w", err)
	}
	defer f.Close()
	head := make([]byte, 256)
	n, err := f.Read(head)
	if err != nil {
		return "", fmt.Errorf("inspect %s: %w", plain.Text(path), err)
	}
	line, isScript := bytes.CutPrefix(head[:n], []byte("#!"))
	if !isScript {
		return "", nil
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return "", fmt.Errorf("%s is a script that names no interpreter", plain.Text(path))
	}
	if filepath.Base(words[0]) == "env" && len(words) > 1 && !strings.HasPrefix(words[1], "-") {
		found, err := exec.LookPath(words[1])
		if err != nil {
			return "", fmt.Errorf("find %q, which %s names: %w", words[1], plain.Text(path), errors.Unwrap(err))
		}
		return found, nil
	}
	return words[0], nil
}

// linked checks that a program has a loader and calls the C library.
func linked(path string) (loaded, error) {
	f, err := elf.Open(path)
	if err != nil {
		return loaded{}, fmt.Errorf("%s is not a program: %w", plain.Text(path), err)
	}
	defer f.Close()
	// Go's linker writes this section. Package debug/buildinfo would link parsers of
	// other systems' formats.
	if f.Section(".go.buildinfo") != nil {
		return loaded{}, staysTCP{plain.Text(path) + " is written in Go: it makes its own system calls"}
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			loader, err := io.ReadAll(io.LimitReader(p.Open(), unix.PathMax))
			if err != nil {
				return loaded{}, fmt.Errorf("inspect %s: %w", plain.Text(path), err)
			}
			return loaded{f.Machine, strings.HasPrefix(filepath.Base(string(loader)), "ld-musl-")}, nil
		}
	}
	return loaded{}, staysTCP{plain.Text(path) + " is statically linked: nothing can be preloaded into it"}
}

// findRunLibrary finds the library for a program's C library, and checks that the program can
// load it.
func findRunLibrary(program loaded) (string, error) {
	name := "libsconrun.so"
	if program.musl {
		name = "libsconrun.musl.so"
	}
	path, err := programs.FindLibrary(name)
	if err != nil {
		return "", err
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("inspect %s: %w", plain.Text(path), err)
	}
	defer f.Close()
	if f.Machine != program.machine {
		return "", fmt.Errorf("%s is for %v, the program for %v", plain.Text(path), f.Machine, program.machine)
	}
	if strings.ContainsAny(path, " :") {
		return "", fmt.Errorf("%s: the loader accepts no path with spaces or colons", plain.Text(path))
	}
	return path, nil
}
