package pin

import (
	"slices"
	"strings"
	"testing"
)

func TestLists(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want CPUs
	}{
		{"", CPUs{}},
		{"(null)\n", CPUs{}},
		{"0", CPUs{0}},
		{"0-3,8,10-11\n", CPUs{0, 1, 2, 3, 8, 10, 11}},
	} {
		got, err := parseList(tc.in)
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("parseList(%q) = %v, %v", tc.in, got, err)
		}
		if again := strings.TrimSpace(tc.in); again != "(null)" && got.String() != again {
			t.Errorf("%q comes back as %q", tc.in, got)
		}
	}
	for _, in := range []string{"x", "3-1", "-1", "1-", "0-99999999999", "1,,2"} {
		if got, err := parseList(in); err == nil {
			t.Errorf("parseList(%q) = %v, want an error", in, got)
		}
	}
}

func TestMasks(t *testing.T) {
	for _, tc := range []struct {
		set  CPUs
		mask string
	}{
		{CPUs{}, "0"},
		{CPUs{0, 1, 5}, "23"},
		{CPUs{31, 32}, "1,80000000"},
		{CPUs{64}, "1,00000000,00000000"},
	} {
		if got := tc.set.mask(); got != tc.mask {
			t.Errorf("mask of %v is %q, want %q", tc.set, got, tc.mask)
		}
		if got, err := parseMask(tc.mask + "\n"); err != nil || !slices.Equal(got, tc.set) {
			t.Errorf("parseMask(%q) = %v, %v", tc.mask, got, err)
		}
	}
	if got, err := parseMask("0x3"); err == nil {
		t.Errorf("a mask with 0x is %v", got)
	}
}
