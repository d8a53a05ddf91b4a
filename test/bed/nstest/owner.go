package nstest

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// Owner starts an nft(8) in a namespace that runs one line of commands and lives on, so that
// tables with the flag owner stay. The function that it returns, or the end of the test, ends
// the process and waits until the kernel has removed them.
func Owner(t testing.TB, ns, line string) (end func()) {
	t.Helper()
	nft := exec.Command("nft", "--interactive")
	stdin, err := nft.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := nft.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	nft.Stderr = nft.Stdout
	Do(t, ns, func() { err = nft.Start() })
	if err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = nft.Process.Kill()
		_ = nft.Wait()
		stdin.Close()
	})
	t.Cleanup(end)
	const done = "scon-done"
	fmt.Fprintf(stdin, "%s\nlist set ip %s %[2]s\n", line, done) // which fails, and names the set
	for out := bufio.NewScanner(stdout); out.Scan(); {
		switch {
		case strings.Contains(out.Text(), "No such file"):
			return end
		case strings.Contains(out.Text(), "Error"):
			t.Fatalf("nft: %s: %s", line, out.Text())
		}
	}
	t.Fatalf("nft has ended: %s", line)
	return nil
}
