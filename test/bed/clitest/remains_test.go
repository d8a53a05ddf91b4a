package clitest

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
)

// killedEnv has the program be a test that makes a state directory, a namespace and a
// service, and is killed.
const killedEnv = "SCON_TEST_KILLED"

func TestMain(m *testing.M) {
	if os.Getenv(killedEnv) == "" {
		os.Exit(m.Run())
	}
	if err := makeAndWait(); err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
}

func makeAndWait() error {
	state, err := os.MkdirTemp("", "scon-cli-")
	if err != nil {
		return err
	}
	name := filepath.Base(state)
	if _, err := removeAtEnd(state, name); err != nil {
		return err
	}
	if err := netns.Create(name); err != nil {
		return err
	}
	// The service: it has scon's name, and none of the test's process group.
	service := exec.Command("sh", "-c", `echo scon >/proc/$$/comm; printf '{\n  "pid": %d,\n}\n' $$ >"$0"/daemon.json; read _ <"$1"`, state, filepath.Join(state, "fifo"))
	service.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(syscall.Mkfifo(filepath.Join(state, "fifo"), 0o600), service.Start()); err != nil {
		return err
	}
	for {
		if content, err := os.ReadFile(filepath.Join(state, "daemon.json")); err == nil && strings.HasSuffix(string(content), "}\n") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	os.Stdout.WriteString(state + "\n")
	select {}
}

// What a killed test has made is removed.
func TestKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), killedEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	state, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	state = strings.TrimSpace(state)
	for _, path := range []string{state, netns.Path(filepath.Base(state))} {
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	for _, path := range []string{state, netns.Path(filepath.Base(state))} {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s is left", path)
				break
			}
		}
	}
}
