package main

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// A table of docs/json.md stands between such lines; the first names a folder and types:
//
//	<!-- fields of internal/api: Status Rules Hook -->
//	<!-- end -->
var table = regexp.MustCompile(`(?s)(<!-- fields of (\S+): ([\w ]+) -->\n).*?(<!-- end -->\n)`)

// fill returns a page with its tables made anew: a row for each field that a document has.
func fill(page string, structs func(folder string) (map[string][]field, error)) (_ string, err error) {
	page = table.ReplaceAllStringFunc(page, func(old string) string {
		m := table.FindStringSubmatch(old)
		docs, failed := structs(m[2])
		var rows string
		if failed == nil {
			rows, failed = tables(docs, strings.Fields(m[3]))
		}
		if failed != nil {
			err = failed
		}
		return m[1] + rows + m[4]
	})
	return page, err
}

// tables returns the rows of some types. The first is the document; others are named by the
// field that has them.
func tables(docs map[string][]field, types []string) (string, error) {
	out := "\n| field | type | what |\n| --- | --- | --- |\n"
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
				what = strings.TrimPrefix(strings.TrimPrefix("`"+key+"` "+rest, "`"+key+"` is "), "`"+key+"` are ")
			}
			what = strings.TrimSuffix(what, ".")
			if what == "" {
				return "", fmt.Errorf("%s.%s has no comment", name, f.name)
			}
			if strings.Contains(options, "omitempty") && !strings.Contains(what, "absent") {
				what = strings.TrimPrefix(what+"; absent if "+nothing[f.kind], "; ")
			}
			out += fmt.Sprintf("| `%s%s` | %s | %s |\n", prefix, key, f.kind, strings.ReplaceAll(what, "|", `\|`))
		}
	}
	return out + "\n", nil
}

// nothing is the value that is left out.
var nothing = map[string]string{"boolean": "false", "number": "0", "string": "empty", "object": "there is none", "pair of numbers": "unknown", "pair of objects": "unknown"}

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
