// Package image writes the image of a container that does nothing: for engines that have no
// registry.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Name is the name of the image that Write writes.
const Name = "localhost/scon-startup:1"

// Lifetime is when a container ends that is not stopped, in seconds.
const Lifetime = "900"

// Write writes an image of a root file system in the format of "docker save",
// and returns its path.
func Write(dir, root string) (path string, err error) {
	layer, err := layerOf(root)
	if err != nil {
		return "", err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/bin/busybox", "sleep", Lifetime}, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return "", err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{Name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "image.tar")
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	for _, file := range []struct {
		name    string
		content []byte
	}{{"config.json", config}, {"layer.tar", layer}, {"manifest.json", manifest}} {
		if err := w.WriteHeader(&tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.content))}); err != nil {
			return "", err
		}
		if _, err := w.Write(file.content); err != nil {
			return "", err
		}
	}
	return path, w.Close()
}

// layerOf returns a tar archive of the folders and files below a root.
func layerOf(root string) ([]byte, error) {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		header, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		if header.Name, err = filepath.Rel(root, path); err != nil {
			return err
		}
		if err := w.WriteHeader(header); err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	return text.Bytes(), errors.Join(err, w.Close())
}
