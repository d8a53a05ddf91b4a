package peers

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/scon-project/scon/test/bed/vm"
)

// module is a Go module of others.
type module struct {
	path, version string
	sum           string // as in go.sum
}

// fetch returns a directory of the cache with the module's files, after making has changed
// and built them; text is what making depends on besides the module.
func (m module) fetch(text string, making func(dir string) error) (string, error) {
	name := fmt.Sprintf("%s-%s-%08x", filepath.Base(m.path), m.version, crc32.ChecksumIEEE([]byte(text)))
	return vm.Cached("peers", name, func(dir string) error {
		out, err := goTool("/", "mod", "download", "-json", m.path+"@"+m.version).Output()
		var got struct{ Dir, Sum, Error string }
		if jsonErr := json.Unmarshal(out, &got); jsonErr != nil {
			return fmt.Errorf("fetch %s: %w: %s", m.path, err, out)
		}
		if got.Error != "" || got.Sum != m.sum {
			return fmt.Errorf("fetch %s %s: %s, checksum %q, want %q", m.path, m.version, got.Error, got.Sum, m.sum)
		}
		if err := os.CopyFS(dir, os.DirFS(got.Dir)); err != nil {
			return err
		}
		if err := run(exec.Command("chmod", "-R", "u+w", dir)); err != nil {
			return err
		}
		return making(dir)
	})
}

// goTool prepares a go command in a directory.
func goTool(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	return cmd
}

// goEnv is the environment in which a suite calls go itself: what it needs was fetched.
func goEnv() ([]string, error) {
	env := []string{"GOPROXY=off"}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOROOT"} {
		out, err := exec.Command("go", "env", name).Output()
		if err != nil {
			return nil, fmt.Errorf("go env %s: %w", name, err)
		}
		value := strings.TrimSpace(string(out))
		env = append(env, name+"="+value)
		if name == "GOROOT" {
			env = append(env, "PATH="+value+"/bin:"+systemPath)
		}
	}
	return env, nil
}

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// run runs a command. The error has its output.
func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// replace replaces a text in a file, which has it once.
func replace(path, old, with string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), old); n != 1 {
		return fmt.Errorf("%s has %q %d times, want once: it is of another version", path, old, n)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), old, with, 1)), 0o644)
}
