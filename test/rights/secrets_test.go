package rights

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The daemon's output and log reveal neither containers' environments, command lines
// and data, nor the daemon's own environment, even at the most verbose log level.
func TestSecrets(t *testing.T) {
	const secret = "hunter2"
	t.Setenv("SCON_TEST_PASSWORD", secret+"-of-the-daemon")
	b := scontest.New(t, scontest.Layout{})
	cmd := exec.Command("sh", "-c", "read wait", "--password="+secret)
	cmd.Env = append(os.Environ(), "PASSWORD="+secret)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(lab.Container(1), cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
	b.Up()
	c := b.Outgoing("tcp", 1).GoExpress()
	if _, err := c.Client.Write([]byte(secret)); err != nil {
		t.Fatal(err)
	}
	status := b.Status()
	explanation, err := b.Daemon.Explain(status.Containers[0].Dev)
	if err != nil {
		t.Fatal(err)
	}

	said := map[string]any{"status": status, "flows": b.Flows(), "explain": explanation}
	for what, document := range said {
		text, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		wantNo(t, secret, what, string(text))
	}
	err = filepath.WalkDir(b.StateDir(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		wantNo(t, secret, path, string(text))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	b.Daemon.Down()
	words := b.Daemon.Log()
	wantNo(t, secret, "the log", words)
	if !strings.Contains(words, "level=DEBUG") || !strings.Contains(words, "container hooked") {
		t.Errorf("the log is incomplete:\n%s", words)
	}
}

func wantNo(t *testing.T, secret, what, text string) {
	t.Helper()
	if strings.Contains(text, secret) {
		t.Errorf("%s contains the secret:\n%s", what, text)
	}
}
