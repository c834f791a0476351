from vitreous.data.sample_photos import FILES, samples


def test_samples_are_named_photographs():
    photos = samples()
    assert list(photos) == [file.partition(".")[0] for file in FILES]
    for name, photo in photos.items():
        assert photo.filename == name
        assert photo.mode == "RGB"
        assert min(photo.size) >= 300
