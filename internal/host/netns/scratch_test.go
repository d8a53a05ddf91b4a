package netns_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

func TestScratch(t *testing.T) {
	outside, err := netns.Inode("")
	if err != nil {
		t.Fatal(err)
	}
	want := errors.New("its error")
	err = netns.Scratch(func() error {
		inside, err := netns.Inode("")
		if err != nil {
			return err
		}
		if inside == outside {
			t.Error("the scratch namespace is the caller's")
		}
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		if len(links) == 0 || links[0].Attrs().Name != "lo" {
			t.Errorf("devices of a scratch namespace: %v", links)
		}
		return want
	})
	if !errors.Is(err, want) {
		t.Errorf("got error %v", err)
	}
	if after, err := netns.Inode(""); after != outside {
		t.Errorf("the caller was moved: %d, %d, %v", outside, after, err)
	}
}

// No thread stays in a namespace that is left, not even the process's first one,
// which cannot end. In a process of its own, where others have not used it up.
func TestScratchKeepsNoThread(t *testing.T) {
	if os.Getenv("ALONE") == "" {
		c := exec.Command(os.Args[0], "-test.run", "^TestScratchKeepsNoThread$")
		c.Env = append(os.Environ(), "ALONE=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	for range 200 {
		done := make(chan error)
		go func() { done <- netns.Scratch(func() error { return nil }) }()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if its, err := os.Readlink(thread); err == nil && its != own {
			t.Errorf("%s is in a namespace that was left", thread)
		}
	}
}
