package copies

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// durable writes a copy in a directory to the disk: the rename that makes an object does not. The
// state names the copy afterwards, and the power may fail then. A bucket of S3 is durable by itself.
func (s *Store) durable(cluster, sandbox, id string) error {
	if s.dir == "" {
		return nil
	}
	for _, dir := range []string{s.dir, filepath.Join(s.dir, cluster), filepath.Join(s.dir, cluster, sandbox)} {
		if err := syncPath(dir); err != nil {
			return err
		}
	}
	return filepath.WalkDir(filepath.Join(s.dir, cluster, sandbox, id), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, syncPath(path))
	})
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
