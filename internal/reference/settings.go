package main

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/config"
)

// head is the beginning of the file of settings.
const head = `# scon.yaml: the settings of SCON's services: express (` + "`scon daemon`" + `), startup
# (` + "`scon startup serve`" + `) and pipe (` + "`scon pipe serve`" + `).
# Every key is shown with its default, which also applies if the key is missing.
# Flags on the command line override this file.
`

// settingsFile returns packaging/scon.yaml: every key with its default and the comment of
// its field.
func settingsFile(docs map[string][]field) (string, error) {
	var out strings.Builder
	out.WriteString(head)
	open := []string{} // the sections that the last key is in
	for _, name := range config.Names() {
		words := strings.Split(name, ".")
		value := reflect.ValueOf(config.Default())
		for depth, word := range words {
			f, v, err := find(docs[value.Type().Name()], value, word)
			if err != nil {
				return "", fmt.Errorf("setting %s: %w", name, err)
			}
			value = v
			last := depth == len(words)-1
			if !last && depth < len(open) && open[depth] == word {
				continue
			}
			if depth == 0 {
				out.WriteString("\n")
			}
			indent := strings.Repeat("  ", depth)
			for line := range strings.Lines(f.doc) {
				fmt.Fprintf(&out, "%s# %s\n", indent, strings.TrimSpace(line))
			}
			out.WriteString(indent + word + ":")
			if last {
				text, err := valueText(value)
				if err != nil {
					return "", fmt.Errorf("setting %s: %w", name, err)
				}
				out.WriteString(" " + text)
			}
			out.WriteString("\n")
		}
		open = words[:len(words)-1]
	}
	return out.String(), nil
}

// find returns the field of a key and its value: per_container_share is PerContainerShare.
func find(fields []field, in reflect.Value, key string) (field, reflect.Value, error) {
	for _, f := range fields {
		if strings.EqualFold(f.name, strings.ReplaceAll(key, "_", "")) {
			return f, in.FieldByName(f.name), nil
		}
	}
	return field{}, reflect.Value{}, fmt.Errorf("%v has no field for %q", in.Type(), key)
}

// valueText returns a value as the file has it.
func valueText(v reflect.Value) (string, error) {
	switch value := v.Interface().(type) {
	case config.Devices:
		return value.String(), nil
	case slog.Level:
		return strings.ToLower(value.String()), nil
	case time.Duration:
		return strings.TrimSuffix(value.String(), "m0s") + map[bool]string{true: "m"}[strings.HasSuffix(value.String(), "m0s")], nil
	case int64:
		return fmt.Sprintf("%dMiB", value>>20), nil
	case string:
		if value == "" {
			return `""`, nil
		}
		return value, nil
	case bool, int:
		return fmt.Sprint(value), nil
	case []string:
		return "[" + strings.Join(value, ", ") + "]", nil
	}
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return "[]", nil
	}
	return "", fmt.Errorf("%v has no form in the file", v.Type())
}
