package netns_test

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/netns"
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
