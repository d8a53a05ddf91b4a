package main

import "testing"

func TestMostFirst(t *testing.T) {
	got := mostFirst(map[string]uint64{"syn": 2, "new": 30, "ttl": 0, "mtu": 2})
	if want := "new 30, mtu 2, syn 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := mostFirst(nil); got != "" {
		t.Errorf("nothing is %q", got)
	}
}
