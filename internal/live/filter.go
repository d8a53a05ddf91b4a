package live

import (
	"fmt"
	"strings"
)

// Filter selects containers and connections. All its words have to match.
//
//	web              anywhere in a row
//	container:web    in the container's name, ID, device, image or service
//	peer:10.0.0.1    in the other end: an address with a port, or a container
//	reason:no_entry  in a reason for regular packets, or in what bounds a lease
//	way:bridged      in the way that packets skip, or their state
//	proto:udp        in the protocol
//	direction:in     in the direction: out, in
type Filter struct{ words []word }

// word is one condition; key "" matches anywhere.
type word struct{ key, text string }

// FilterKeys are the keys of a filter's words.
var FilterKeys = []string{"container", "peer", "reason", "way", "proto", "direction"}

// ParseFilter parses words that are separated by spaces; "" selects everything.
func ParseFilter(text string) (Filter, error) {
	var f Filter
	for _, w := range strings.Fields(strings.ToLower(text)) {
		key, rest, ok := strings.Cut(w, ":")
		if !ok || !isKey(key) {
			if ok && isWord(key) {
				return Filter{}, fmt.Errorf("%q: there is no key %q, only %s", w, key, strings.Join(FilterKeys, ", "))
			}
			key, rest = "", w // an address has colons, too
		}
		if rest == "" {
			return Filter{}, fmt.Errorf("%q: nothing follows the colon", w)
		}
		f.words = append(f.words, word{key, rest})
	}
	return f, nil
}

func isKey(s string) bool {
	for _, k := range FilterKeys {
		if s == k {
			return true
		}
	}
	return false
}

// isWord tells a misspelt key from the beginning of an address: it has a letter that no
// hexadecimal number has.
func isWord(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") == "" && strings.ContainsAny(s, "ghijklmnopqrstuvwxyz")
}

// fields are the texts of a row by key.
type fields map[string][]string

func (f Filter) match(row fields) bool {
	for _, w := range f.words {
		if !row.has(w) {
			return false
		}
	}
	return true
}

func (row fields) has(w word) bool {
	for key, texts := range row {
		if w.key != "" && w.key != key {
			continue
		}
		for _, t := range texts {
			if strings.Contains(strings.ToLower(t), w.text) {
				return true
			}
		}
	}
	return false
}

// Container reports whether the filter selects a container.
func (f Filter) Container(c *Container) bool {
	return f.match(fields{"container": {c.Name, c.ID, c.Dev, c.Bridge, c.Image, c.Project, c.Service}, "reason": MostFrequent(c.Reasons)})
}

// Connection reports whether the filter selects a connection.
func (f Filter) Connection(c *Connection) bool {
	return f.match(fields{
		"container": {c.Container},
		"peer":      {c.Orig.String(), c.Reply.String(), c.Peer},
		"reason":    {c.LeaseBound},
		"way":       {c.Path, c.State},
		"proto":     {c.Proto},
		"direction": {c.Direction},
	})
}

// Apply leaves the selected containers and connections in a view, in lists of their own.
func (f Filter) Apply(v *View) {
	v.Containers = selected(v.Containers, f.words, f.Container)
	v.Connections = selected(v.Connections, f.words, f.Connection)
}

// selected returns the elements that is selects; without words all.
func selected[T any](all []T, words []word, is func(*T) bool) []T {
	chosen := make([]T, 0, len(all))
	if len(words) == 0 {
		return append(chosen, all...)
	}
	for i := range all {
		if is(&all[i]) {
			chosen = append(chosen, all[i])
		}
	}
	return chosen
}
