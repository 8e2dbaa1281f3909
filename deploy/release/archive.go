package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"os"
	"time"
)

// archive writes the same tree as the packages have, below one folder. It has no entries for
// folders: unpacked over a system, it changes none of that system's.
func (r release) archive(files []file) error {
	name := "bivouac-" + r.source.version + "-linux-" + r.arch
	return r.write(name+".tar.gz", func(w io.Writer) error {
		zip := gzip.NewWriter(w)
		out := tar.NewWriter(zip)
		for _, f := range files {
			if err := addFile(out, f, name+"/"+f.path, r.source.time); err != nil {
				return err
			}
		}
		if err := out.Close(); err != nil {
			return err
		}
		return zip.Close()
	})
}

// addFile adds one file, owned by root, to a tar.
func addFile(out *tar.Writer, f file, name string, at time.Time) error {
	in, err := os.Open(f.source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: int64(f.mode), Size: info.Size(),
		ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatPAX,
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}
