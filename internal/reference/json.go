package main

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"unicode/utf8"
)

// A list of docs/json.md stands between such lines; the first names a folder and types:
//
//	<!-- fields of internal/api: Status Rules Hook -->
//	<!-- end -->
var list = regexp.MustCompile(`(?s)(<!-- fields of (\S+): ([\w ]+) -->\n).*?(<!-- end -->\n)`)

// fill returns a page with its lists made anew: an item for each field that a document has.
func fill(page string, structs func(folder string) (map[string][]field, error)) (_ string, err error) {
	page = list.ReplaceAllStringFunc(page, func(old string) string {
		m := list.FindStringSubmatch(old)
		docs, failed := structs(m[2])
		var items string
		if failed == nil {
			items, failed = itemsOf(docs, strings.Fields(m[3]))
		}
		if failed != nil {
			err = failed
		}
		return m[1] + items + m[4]
	})
	return page, err
}

// itemsOf returns the items of some types. The first is the document; others are named by the
// field that has them. A "?" behind the name of a field says that it may be absent; a field without
// a kind is a string.
func itemsOf(docs map[string][]field, types []string) (string, error) {
	out := "\n"
	path := map[string]string{types[0]: ""}
	for _, name := range types {
		prefix, ok := path[name]
		if docs[name] == nil || !ok {
			return "", fmt.Errorf("no document has a %s", name)
		}
		for _, f := range flat(docs, docs[name]) {
			key, options, _ := strings.Cut(reflect.StructTag(f.tag).Get("json"), ",")
			if key == "" || key == "-" {
				continue
			}
			if _, known := path[f.typ]; !known {
				path[f.typ] = prefix + key + f.each + "."
			}
			what := strings.Join(strings.Fields(f.doc), " ")
			if rest, named := strings.CutPrefix(what, f.name+" "); named {
				what = strings.TrimPrefix(strings.TrimPrefix(rest, "is "), "are ")
			}
			what = strings.TrimSuffix(what, ".")
			if what == "" {
				return "", fmt.Errorf("%s.%s has no comment", name, f.name)
			}
			name := prefix + key
			if strings.Contains(options, "omitempty") {
				name += "?"
			}
			if f.kind != "string" {
				name += ":" + f.kind
			}
			out += wrap(fmt.Sprintf("- `%s`: %s", name, what), 120)
		}
	}
	return out + "\n", nil
}

// word is a word of Markdown: code is not broken.
var word = regexp.MustCompile("(?:`[^`]*`|[^\\s`])+")

// wrap returns an item of a list in lines of at most so many columns, if its words allow it.
func wrap(text string, columns int) string {
	var out strings.Builder
	at := 0
	for _, w := range word.FindAllString(text, -1) {
		n := utf8.RuneCountInString(w)
		switch {
		case at == 0:
		case at+1+n > columns:
			out.WriteString("\n  ")
			at = 2
		default:
			out.WriteString(" ")
			at++
		}
		out.WriteString(w)
		at += n
	}
	return out.String() + "\n"
}

// flat returns fields with those of embedded types of the package in their place.
func flat(docs map[string][]field, fields []field) (all []field) {
	for _, f := range fields {
		if f.name == "" && reflect.StructTag(f.tag).Get("json") == "" {
			all = append(all, flat(docs, docs[f.typ])...)
		} else {
			all = append(all, f)
		}
	}
	return all
}
