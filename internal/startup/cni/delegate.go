package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// ErrNoPlugin is wrapped when a plugin is not in CNI_PATH.
var ErrNoPlugin = errors.New("no such plugin")

// delegateTimeout limits a plugin's call. A hanging plugin blocks only its own
// attachment.
var delegateTimeout = 30 * time.Second

// outputLimit limits what a plugin prints, in bytes, and messageLimit what an error quotes
// of it.
const (
	outputLimit  = 1 << 20
	messageLimit = 4 << 10
)

// ErrOutput is wrapped when a plugin prints more than 1 MiB.
var ErrOutput = fmt.Errorf("it printed more than %d KiB", outputLimit>>10)

// output keeps what a plugin prints. It calls excess when that is more than outputLimit.
type output struct {
	kept   []byte
	excess context.CancelCauseFunc
}

func (o *output) Write(b []byte) (int, error) {
	if len(o.kept)+len(b) > outputLimit {
		o.excess(ErrOutput)
		return 0, ErrOutput
	}
	o.kept = append(o.kept, b...)
	return len(b), nil
}

// message returns the beginning of what a plugin printed.
func (o *output) message() []byte {
	b := bytes.TrimSpace(o.kept)
	return b[:min(len(b), messageLimit)]
}

// Delegate calls another plugin with a request and returns its result, nil for a verb
// without one. A plugin that has not ended after 30 s, or when ctx is done, is killed
// with its process group; the error then wraps context.DeadlineExceeded or ctx's. So is one
// that prints too much, with ErrOutput.
// (cni/pkg/invoke has no time limit, and links 3 MB of tracing.)
func Delegate(ctx context.Context, plugin string, r Request) (*types100.Result, error) {
	path, err := find(plugin, r.Path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, delegateTimeout)
	defer cancel()
	ctx, excess := context.WithCancelCause(ctx)
	defer excess(nil)
	stdout, stderr := output{excess: excess}, output{excess: excess}
	cmd := exec.CommandContext(ctx, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a process that left the group may hold the pipes
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(r.Input), &stdout, &stderr
	cmd.Env = append(os.Environ(),
		"CNI_COMMAND="+r.Command, "CNI_CONTAINERID="+r.ContainerID, "CNI_NETNS="+r.Netns,
		"CNI_IFNAME="+r.IfName, "CNI_ARGS="+r.Args, "CNI_PATH="+r.Path)
	if err := cmd.Run(); err != nil {
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, ErrOutput):
			return nil, fmt.Errorf("%s: %s was killed: %w", plugin, r.Command, cause)
		case cause != nil:
			return nil, fmt.Errorf("%s: %s did not end and was killed: %w", plugin, r.Command, cause)
		}
		refused := new(types.Error)
		if json.Unmarshal(stdout.kept, refused) == nil && refused.Msg != "" {
			return nil, fmt.Errorf("%s: %w", plugin, refused)
		}
		return nil, fmt.Errorf("%s: %w: %s", plugin, err, stderr.message())
	}
	if r.Command != "ADD" {
		return nil, nil
	}
	result, err := create.CreateFromBytes(stdout.kept)
	if err != nil {
		return nil, fmt.Errorf("%s: parse its result: %w", plugin, err)
	}
	return types100.GetResult(result)
}

// find searches the directories of CNI_PATH for a plugin.
func find(plugin, path string) (string, error) {
	if plugin != filepath.Base(plugin) {
		return "", fmt.Errorf("plugin %q: want a bare name", plugin)
	}
	for _, dir := range filepath.SplitList(path) {
		found := filepath.Join(dir, plugin)
		if info, err := os.Stat(found); err == nil && info.Mode().IsRegular() {
			return found, nil
		} else if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("plugin %s: %w", plugin, err)
		}
	}
	return "", fmt.Errorf("plugin %s is not in CNI_PATH %s: %w", plugin, path, ErrNoPlugin)
}
