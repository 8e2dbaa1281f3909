package secrets

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
)

// Collect implements Store. It is one transaction. What it destroys gives its room in the file back.
func (s *Sealed) Collect(ctx context.Context, birth Birth, judge func(Entry) Verdict) (Collected, error) {
	if err := checkBirth(birth); err != nil {
		return Collected{}, fmt.Errorf("collecting secrets: %w", err)
	}
	p := &pass{judge: judge, birth: birth, now: s.now(), grace: s.grace, retention: s.retention}
	var total Collected
	err := s.update(ctx, bucketVersions, func(b *bbolt.Bucket) error {
		decisions, err := s.decisions(b, p)
		if err != nil {
			return err
		}
		for path, d := range decisions {
			if err := s.carryOut(b, path, *d, p); err != nil {
				return err
			}
			total.note(path, *d)
		}
		return nil
	})
	if err != nil {
		return Collected{}, fmt.Errorf("collecting secrets: %w", err)
	}
	total.trim()
	if err := s.compact(ctx); err != nil {
		return total, fmt.Errorf("compacting %s: %w", sealedFile, err)
	}
	return total, nil
}

// decisions asks the judge about every version. It skips a damaged record.
func (s *Sealed) decisions(b *bbolt.Bucket, p *pass) (map[string]*decision, error) {
	decisions := map[string]*decision{}
	return decisions, b.ForEach(func(key, raw []byte) error {
		path, version, ok := parseVersionKey(key)
		r, err := decodeRecord(raw)
		if !ok || err != nil {
			return nil
		}
		d := decisions[path]
		if d == nil {
			d = &decision{}
			decisions[path] = d
		}
		e := Entry{Path: path, Version: version, Created: r.createdAt(), DeletedAt: r.deletedAt()}
		e.Birth, _ = ParseBirth(r.birth)
		p.decide(e, d)
		return nil
	})
}

// carryOut applies a decision to the versions of one entry.
func (s *Sealed) carryOut(b *bbolt.Bucket, path string, d decision, p *pass) error {
	var errs []error
	change := func(versions []int, fn func(*record)) {
		for _, version := range versions {
			errs = append(errs, changeRecord(b, versionKey(path, version), fn))
		}
	}
	change(d.undelete, func(r *record) { r.deleted = 0 })
	change(d.stamp, func(r *record) { r.birth = p.birth.String() })
	change(d.remove, func(r *record) { r.deleted = p.now.UnixMicro() })
	for _, version := range d.destroy {
		errs = append(errs, b.Delete(versionKey(path, version)))
	}
	return errors.Join(errs...)
}
