"""The shape of the house: layers, stems, public names, documents."""
