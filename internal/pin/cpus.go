package pin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CPUs is a set of CPUs, ascending. As text it is the kernel's list: "0-3,8".
type CPUs []int

// newCPUs is the set of some CPUs in any order.
func newCPUs(ids ...int) CPUs {
	set := slices.Sorted(slices.Values(ids))
	return slices.Compact(set)
}

// parseList reads a list as the kernel writes it; "" and "(null)" are empty.
func parseList(text string) (CPUs, error) {
	text = strings.TrimSpace(text)
	if text == "" || text == "(null)" {
		return CPUs{}, nil
	}
	var ids []int
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || from < 0 || to < from || to >= maxCPUs {
			return nil, fmt.Errorf("list of CPUs %q: want such as 0-3,8", text)
		}
		for id := from; id <= to; id++ {
			ids = append(ids, id)
		}
	}
	return newCPUs(ids...), nil
}

// maxCPUs is above every kernel's NR_CPUS.
const maxCPUs = 1 << 14

// parseMask reads a mask as the kernel writes it: hexadecimal, a comma before
// each 32 bits.
func parseMask(text string) (CPUs, error) {
	digits := strings.ReplaceAll(strings.TrimSpace(text), ",", "")
	set := CPUs{}
	for i := range len(digits) {
		digit, err := strconv.ParseUint(digits[len(digits)-1-i:len(digits)-i], 16, 4)
		if err != nil {
			return nil, fmt.Errorf("mask of CPUs %q: want hexadecimal digits", text)
		}
		for bit := range 4 {
			if digit&(1<<bit) != 0 {
				set = append(set, 4*i+bit)
			}
		}
	}
	return set, nil
}

// mask is the set as the kernel reads it from a mask's file.
func (c CPUs) mask() string {
	if len(c) == 0 {
		return "0"
	}
	words := make([]uint32, c[len(c)-1]/32+1)
	for _, id := range c {
		words[id/32] |= 1 << (id % 32)
	}
	var b strings.Builder
	for i, word := range slices.Backward(words) {
		switch {
		case i == len(words)-1:
			fmt.Fprintf(&b, "%x", word)
		default:
			fmt.Fprintf(&b, ",%08x", word)
		}
	}
	return b.String()
}

// String is the set as a list.
func (c CPUs) String() string {
	var ranges []string
	for i := 0; i < len(c); {
		j := i
		for j+1 < len(c) && c[j+1] == c[j]+1 {
			j++
		}
		one := strconv.Itoa(c[i])
		if j > i {
			one += "-" + strconv.Itoa(c[j])
		}
		ranges = append(ranges, one)
		i = j + 1
	}
	return strings.Join(ranges, ",")
}

// MarshalText writes the list.
func (c CPUs) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads the list.
func (c *CPUs) UnmarshalText(text []byte) (err error) {
	*c, err = parseList(string(text))
	return err
}

func (c CPUs) has(id int) bool { return slices.Contains(c, id) }

func (c CPUs) without(other CPUs) CPUs {
	return slices.DeleteFunc(slices.Clone(c), other.has)
}

func (c CPUs) and(other CPUs) CPUs {
	return slices.DeleteFunc(slices.Clone(c), func(id int) bool { return !other.has(id) })
}
